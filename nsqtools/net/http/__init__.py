"""HTTP/1.1 for everybody: bytes, connections, a server, and the APIs of nsqd and nsqlookupd."""
