"""What happens once per transfer or disposition: typed Python that runs as it is, and compiled."""
