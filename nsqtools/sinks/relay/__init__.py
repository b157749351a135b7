"""Batches to topics of another nsqd, filtered and edited: ``nsqtools relay``."""
