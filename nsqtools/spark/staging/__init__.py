"""The staging of a stream: where messages are between FIN in nsqd and Spark's commit."""
