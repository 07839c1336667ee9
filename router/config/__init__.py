"""Configuration: its tables, files, and checks."""
