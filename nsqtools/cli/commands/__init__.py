"""The commands: a module or a package for each, or for several of one kind."""
