"""What the router costs, measured beside a raw byte forwarder in the same run: `make bench`."""
