"""What a record is: how it is written, read, compressed, salvaged and verified.

It has three forms: the body before a delimiter, a JSON object a line, and the body after its size.
"""
