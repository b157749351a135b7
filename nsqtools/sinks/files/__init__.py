"""Archives on disk: the sink of ``to-file``."""
# size: a module for each thing that is done with files
