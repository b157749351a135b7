"""What is inside a body: JSON, expressions about it, and decoders of other formats."""
