"""The commands: one module, or one package, for each."""

# size: readers look for each command in a file of its own
