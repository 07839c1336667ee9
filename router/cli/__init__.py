"""The command line, a file per command: arguments in, exit status out."""
