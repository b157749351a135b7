"""One module for each command: its options, and the few lines that lead from them to the work."""
