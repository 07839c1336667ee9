"""Policies: decisions as small pure objects, without I/O."""
