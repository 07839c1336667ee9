"""Nodes, links and connections of a router, as data."""
