"""Consumer and Producer: they own the connections and apply the plans of ``policy``."""

# size: consumers, producers and administration share connections and look-ups
