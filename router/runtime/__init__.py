"""The running `Router`: its tasks, sockets, files and threads."""
