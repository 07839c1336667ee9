"""The router's memory: holders, shares, and a limit."""
