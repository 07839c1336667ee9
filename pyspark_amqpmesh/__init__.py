"""The data source `amqp` for Spark, which looks for `DefaultSource` in each package named `pyspark_*`."""

from amqpmesh.pipeline.connector.datasource import AmqpDataSource as DefaultSource

__all__ = ["DefaultSource"]
