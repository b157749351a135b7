"""Pure decisions: objects take facts, ``now`` and ``rng``, and return plans."""

# size: one module per decision; none imports another
