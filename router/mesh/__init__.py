"""Routes over several routers: neighbours, lanes, and next hops."""
