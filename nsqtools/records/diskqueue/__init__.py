"""nsqd's disk queues, as go-diskqueue writes them into nsqd's data path.

A record is a 4-byte size and a message as on the wire: 8-byte timestamp, 2-byte attempts, 16 bytes
of id, body. It has no checksum. The files of a queue are numbered; a meta file beside them has the
number of messages, and the positions to read and to write at (``diskqueue.go``).
"""
