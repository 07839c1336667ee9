"""The life of a delivery: arrival, queue, dispatch, sending, and settlement (§2.6.12, §2.6.14)."""
