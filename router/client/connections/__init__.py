"""Connections of a client: dialed, kept and dialed again, or within the process of a router."""
