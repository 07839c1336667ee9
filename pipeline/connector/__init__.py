"""The Spark data source `amqp`: streams and batches are read from a mesh, and written to it."""
