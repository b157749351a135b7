"""Finding nsqds through nsqlookupd, and what they still hold."""
