"""What nsqd and nsqlookupd v1.3.0 do, observed with plain sockets on them and on the sandbox."""
