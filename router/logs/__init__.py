"""Log lines: events of the router, and traced frames."""
