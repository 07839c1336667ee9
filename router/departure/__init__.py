"""The departure of clients from a router that is about to stop: they are moved to other routers."""
