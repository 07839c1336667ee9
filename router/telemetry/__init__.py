"""Telemetry records: their schema, how a router makes them, and the segment format."""
