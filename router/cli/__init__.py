"""The command line: one file for each command, options and files that several commands share."""
