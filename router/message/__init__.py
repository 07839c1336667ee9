"""Messages, as programs read and write them (§3.2)."""
