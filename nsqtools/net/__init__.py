"""All sockets of nsqtools: connections to nsqd, and the HTTP clients of nsqd and nsqlookupd."""
