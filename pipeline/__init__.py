"""Analyses of recorded telemetry on Spark: jobs, their result tables, and a report."""
