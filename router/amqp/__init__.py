"""The AMQP 1.0 protocol as a sans-I/O engine: bytes in, events out; calls in, bytes out."""
