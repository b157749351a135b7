"""Sinks, the destinations of batches. A sink settles a message once it is safe there."""
