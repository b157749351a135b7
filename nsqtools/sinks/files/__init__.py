"""Archives on disk: the sink of ``to-file``."""
