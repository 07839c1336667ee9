"""The relay: decides and accounts, without I/O."""
