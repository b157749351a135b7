"""Bytes to messages and back, without asyncio, sockets, ssl, clocks or randomness."""
