"""The client: connections, senders, receivers and requesters, over a socket or within the router's process."""
