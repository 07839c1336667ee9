"""What a router can be told: a table per file. `router.config` puts them together, and reads them from a file."""
