"""The commands: one module, or one package, for each."""

# size: a file for each command is where one looks for it
