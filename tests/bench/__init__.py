"""Side-by-side measurements against the Go tools: ``python -m tests.bench``."""
