"""Bytes to messages and back. Nothing here knows asyncio, sockets, ssl, clocks or chance."""
