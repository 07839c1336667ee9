"""The routing graph: link-state protocol, address book, paths and trees, without I/O."""
