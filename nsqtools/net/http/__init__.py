"""HTTP/1.1: bytes, connections, a server, and the APIs of nsqd and nsqlookupd."""
