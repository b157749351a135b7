"""Consumer and Producer: they own the connections and apply the plans of ``policy``."""
