"""Attaches of peers: answers, stolen links, and the meaning of addresses."""
