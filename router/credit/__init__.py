"""Credit flows backwards: the credit of a node's receivers, divided among its senders (§2.6.7)."""
