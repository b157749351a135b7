"""The commands: one module, or one package, for each."""
