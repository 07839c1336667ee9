"""The Spark data source `amqp`, which reads and writes messages of a mesh as streams and batches."""
