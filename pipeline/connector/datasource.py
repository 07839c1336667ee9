"""The data source `amqp`, in Spark's interface."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from amqpmesh.pipeline.connector.batches import AmqpBatchReader
from amqpmesh.pipeline.connector.columns import BY_NAME, spark_schema
from amqpmesh.pipeline.connector.messages import check_columns
from amqpmesh.pipeline.connector.options import Options, Use
from amqpmesh.pipeline.connector.rows import Shape
from amqpmesh.pipeline.connector.stream import AmqpStreamReader
from amqpmesh.pipeline.connector.writer import AmqpBatchWriter, AmqpStreamWriter
from amqpmesh.router.amqp.errors import CommandError


class AmqpDataSource(DataSource):
    """Messages of a mesh, or of any AMQP 1.0 peer, as rows; Spark finds it by the package `pyspark_amqpmesh`.

    `spark.readStream.format("amqp")`, `df.writeStream.format("amqp")`, `spark.read...` and `df.write...`; the options
    are in `options.py`, the columns in `columns.py`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "amqp"

    def schema(self) -> StructType:
        """Return all columns. A query asks for fewer by `.schema(...)`: other columns are not decoded."""
        return spark_schema(Options(self.options, Use.READ)["body"])

    def reader(self, schema: StructType) -> AmqpBatchReader:
        """Return a reader of a batch. Raises: CommandError: an option or a column is wrong."""
        options = Options(self.options, Use.BATCH)
        return AmqpBatchReader(options, _shape(schema, options))

    def streamReader(self, schema: StructType) -> AmqpStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream. Raises: CommandError: an option or a column is wrong."""
        options = Options(self.options, Use.STREAM)
        return AmqpStreamReader(options, _shape(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> AmqpBatchWriter:
        """Return a writer of a batch. Raises: CommandError: an option or a column is wrong, or it is to overwrite."""
        if overwrite:
            raise CommandError("what was sent cannot be overwritten: use mode append")
        return AmqpBatchWriter(self._writing(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqpStreamWriter:  # noqa: N802
        """Return a writer of a stream. Raises: CommandError: an option or a column is wrong, or it is to overwrite."""
        if overwrite:
            raise CommandError("what was sent cannot be overwritten: use output mode append")
        return AmqpStreamWriter(self._writing(schema))

    def _writing(self, schema: StructType) -> Options:
        options = Options(self.options, Use.WRITE)
        check_columns(schema, options["body"])
        return options


def _shape(schema: StructType, options: Options) -> Shape:
    """Return the columns to make. Raises: CommandError: a column does not exist, or has another type."""
    full = spark_schema(options["body"])
    for field in schema:
        if field.name not in BY_NAME:
            raise CommandError(f"column {field.name}: there is none; there are {', '.join(BY_NAME)}")
        wanted = full[field.name].dataType
        if field.dataType != wanted:
            raise CommandError(f"column {field.name}: is {wanted.simpleString()}, not {field.dataType.simpleString()}")
    return Shape(tuple(field.name for field in schema), options["body"], options["payload"])
