"""The Spark source and sink ``nsq``."""
