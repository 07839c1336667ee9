"""Everything that runs on Spark: jobs over what routers recorded."""
