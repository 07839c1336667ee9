"""SASL: frames, exchange, and mechanisms (§5.3)."""
