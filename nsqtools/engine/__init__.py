"""Consumer and Producer: they own connections and workers, and apply the plans of ``policy``."""
