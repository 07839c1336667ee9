"""Processes: signals, standard streams, children, and supervision."""
