"""The sink of ``nsqtools relay``: filters, edits and publishes to topics of another nsqd."""
