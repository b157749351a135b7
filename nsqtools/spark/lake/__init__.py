"""The files of a lake: reading, writing and their layout."""
