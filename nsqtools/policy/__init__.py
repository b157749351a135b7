"""Pure decisions: objects take facts, ``now`` and ``rng``, and return plans."""
