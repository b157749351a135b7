"""Dead letters published again: from files, or from a channel of a dead-letter topic."""
