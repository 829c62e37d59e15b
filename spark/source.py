"""The data source `tidegate`: `spark.read.format("tidegate").option("bootstrap", "...").option("subscribe",
"flights").load()`, and the same with `spark.readStream`.

The driver parses the options and freezes the ranges; each task then fetches its range from the partition's
leader and yields Arrow batches.  Filters are deliberately not pushed down: in PySpark 4.3 an
implementation of `pushFilters` makes every read fail by default, and gives wrong results where it is switched
on.  Bounds are options instead.

Columns and aggregates cannot be pushed down to a Python source at all.  But a schema without columns,
`.schema(StructType())`, requests empty rows: the leader counts them by indexes, so that `.count()` reads no
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from .executors import SentToExecutors
from .options import (
    OptionError,
    ReadOptions,
    StreamOptions,
    has_stream_options,
    parse_options,
    parse_stream_options,
)
from .schema import SchemaError, projected_columns, spark_schema
from .worker_memory import keep_memory_in_daemon

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from .writing.options import WriteOptions

FORMAT = "tidegate"
NO_TABLES = (
    "Spark gives the options of a table to no source in Python, neither for SELECT nor for INSERT INTO; "
    "write CREATE TEMPORARY VIEW name USING tidegate OPTIONS (...)"
)

Parsed = TypeVar("Parsed")


class TidegateSource(SentToExecutors, DataSource):
    """Batch and streaming reads and writes of Tidegate topics."""

    def __init__(self, options: dict[str, str]) -> None:
        """Spark does not say here what it is for.  Raises OptionError when the options fit nothing."""
        super().__init__(options)
        keep_memory_in_daemon()
        if "provider" in options:
            raise OptionError(f"CREATE TABLE: {NO_TABLES}")
        if not options:  # of a table that was made with columns, which needed no source
            raise OptionError(f"no option is given; if this is a table of the catalog: {NO_TABLES}")
        self._batch = _parsed(parse_options, options)
        self._stream = _parsed(parse_stream_options, options)
        self._read_problem = (
            self._stream
            if isinstance(self._stream, OptionError) and has_stream_options(options)
            else self._batch
        )
        if isinstance(self._batch, OptionError) and isinstance(self._stream, OptionError):
            self._require_write()

    @classmethod
    def name(cls) -> str:
        """The name for `spark.read.format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of Spark's Kafka source: key, value, topic, partition, offset, timestamp,
        timestampType, and headers with the option `includeHeaders`."""
        fits = self._stream.read if isinstance(self._stream, StreamOptions) else self._batch
        if isinstance(fits, OptionError):
            assert isinstance(self._read_problem, OptionError)
            raise self._read_problem
        assert isinstance(fits, ReadOptions)
        return spark_schema(include_headers=fits.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns that `schema` has.  Raises OptionError, SchemaError."""
        if isinstance(self._batch, OptionError):
            raise self._batch
        from .reading.batch_reader import TidegateReader

        return TidegateReader(self._batch, projected_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of the columns that `schema` has, for a stream; of options or columns that fit none, a
        reader that says so."""
        try:
            return self._stream_reader(schema)
        except (OptionError, SchemaError) as error:
            return _RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if isinstance(self._stream, OptionError):
            raise self._stream
        if not hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit"):
            raise OptionError(
                f"streams are read with PySpark 4.2 or newer, and this is {pyspark.__version__}: it has no "
                "limits of triggers for a source in Python; read batches by 'startingOffsets'"
            )
        from .streaming.reader import TidegateStreamReader  # a batch read needs nothing of it

        return TidegateStreamReader(self._stream, projected_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of these columns, exactly once.  Raises OptionError, SchemaError."""
        from .writing.rows import layout_of  # a read needs nothing of the writer, and of Kafka's client
        from .writing.writer import TidegateWriter

        keep_memory_in_daemon()
        if overwrite:
            raise OptionError("a topic cannot be overwritten: write .mode('append')")
        options = self._write_options()
        return TidegateWriter(options, layout_of(schema, options.topic))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of these columns for a stream, exactly once.  As for Spark's Kafka sink, the output mode
        `complete` (`overwrite`) appends, too.  Raises OptionError, SchemaError."""
        options = self._write_options()
        if options.job is not None:
            raise OptionError("options 'jobId' and 'batchId' belong to a batch write: a stream has 'sinkId'")
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise OptionError(
                f"streams are written with PySpark 4.1 or newer, and this is {pyspark.__version__}: write "
                "each micro-batch in foreachBatch, with a 'sinkId' and its number as 'batchId'"
            )
        from .writing.rows import layout_of
        from .writing.stream_writer import TidegateStreamWriter

        return TidegateStreamWriter(options, layout_of(schema, options.topic))

    def _require_write(self) -> None:
        """For options that no read can have.  Raises OptionError unless a write can."""
        from .writing.options import has_write_options

        try:
            self._write_options()
        except OptionError as problem:
            assert isinstance(self._read_problem, OptionError)
            raise (problem if has_write_options(self.options) else self._read_problem) from None

    def _write_options(self) -> WriteOptions:
        from .writing.options import parse_write_options

        return parse_write_options(self.options)


def _parsed(parse: Callable[[Mapping[str, str]], Parsed], options: Mapping[str, str]) -> Parsed | OptionError:
    try:
        return parse(options)
    except OptionError as error:
        return error


DefaultSource = TidegateSource


class _RefusedStream(DataSourceStreamReader):
    """Ends its query with an error, whatever Spark calls first.  PySpark does not show an error of
    `streamReader` itself: it fails on the reader that it has not got (UnboundLocalError), and shows that one
    last."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> Any:  # PySpark 4.0 has no ReadLimit
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, *_: object) -> dict[str, Any]:
        raise self._error

    def partitions(self, *_: object) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


def register(spark: SparkSession) -> None:
    """Registers `format("tidegate")` with a session that has not registered it by itself."""
    spark.dataSource.register(TidegateSource)
