"""The only sockets: connections to nsqd, and the HTTP clients of nsqd and nsqlookupd."""
