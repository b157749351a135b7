"""Records: writing, reading, compression, recovery and verification.

A record is a body followed by a delimiter, a JSON object on its own line, or a body preceded by its
size.
"""
