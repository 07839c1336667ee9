"""`Router`: its tasks, sockets, files and threads."""
