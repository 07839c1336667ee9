"""Benchmarks of the router, beside a raw byte forwarder in the same run: `make bench`."""
