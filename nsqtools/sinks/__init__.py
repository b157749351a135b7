"""Where batches go. A sink settles a message once it is safe where it was going."""
