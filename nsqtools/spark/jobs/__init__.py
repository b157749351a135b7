"""The jobs of ``nsqtools pipeline``."""
