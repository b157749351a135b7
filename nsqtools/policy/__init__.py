"""Decisions. Objects here take facts, ``now`` and ``rng`` and return plans; they touch nothing."""
