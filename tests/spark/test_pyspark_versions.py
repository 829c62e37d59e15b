"""What Spark cannot do with a source in Python is refused by name."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import datasource
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tidegate.spark.options import OptionError
from tidegate.spark.schema import SchemaError
from tidegate.spark.source import TidegateSource

READ = {"bootstrap": "a:1", "subscribe": "flights"}


def test_a_stream_is_refused_where_pyspark_has_no_limits_of_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    monkeypatch.delattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
    refused = TidegateSource(READ).streamReader(StructType().add("value", "binary"))
    with pytest.raises(OptionError, match=r"read with PySpark 4\.2 or newer, and this is 4\.1\.4"):
        refused.initialOffset()
    assert TidegateSource(READ).reader(StructType().add("value", "binary")) is not None


def test_a_stream_is_not_written_where_pyspark_has_no_arrow_writer_of_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    writing = TidegateSource({"bootstrap": "a:1", "topic": "flights"})
    with pytest.raises(OptionError, match=r"PySpark 4\.1 or newer, and this is 4\.0\.5: .*foreachBatch"):
        writing.streamWriter(StructType().add("value", "binary"), False)


def test_options_that_fit_nothing_are_refused_at_once() -> None:
    with pytest.raises(OptionError):
        TidegateSource({"bootstrap": "a:1", "subscribes": "flights"})


def test_what_the_options_are_not_for_is_refused() -> None:
    columns = StructType().add("value", "binary")
    reading, writing = TidegateSource(READ), TidegateSource({"bootstrap": "a:1", "topic": "flights"})
    with pytest.raises(OptionError):
        writing.schema()
    with pytest.raises(OptionError):
        writing.reader(columns)
    with pytest.raises(OptionError):
        writing.streamReader(columns).initialOffset()
    for write in (reading.writer, reading.streamWriter):
        with pytest.raises(OptionError):
            write(columns, False)
    with pytest.raises(OptionError, match="a topic cannot be overwritten"):
        writing.writer(columns, True)
    for named in ({"jobId": "nightly"}, {"batchId": "7"}):
        job = TidegateSource({"bootstrap": "a:1", "topic": "flights", "sinkId": "flights", **named})
        with pytest.raises(OptionError, match="'jobId' and 'batchId' belong to a batch write"):
            job.streamWriter(columns, False)


def test_a_table_of_sparks_catalog_is_refused() -> None:
    """Spark gives its options with `provider` when it is made, and none at all when it is read."""
    with pytest.raises(OptionError, match="write CREATE TEMPORARY VIEW name USING tidegate"):
        TidegateSource({**READ, "provider": "tidegate"})
    with pytest.raises(OptionError, match=r"no option is given; .*write CREATE TEMPORARY VIEW name USING"):
        TidegateSource({})


def test_a_stream_that_is_refused_says_so_whatever_spark_calls_first() -> None:
    """A query with a checkpoint begins with other calls than a new one; PySpark shows no error of
    `streamReader`."""
    start: dict[str, object] = {}
    value = StructType().add("value", "binary")
    for reader, problem in (
        (TidegateSource({**READ, "maxOffsetsPerTrigger": "many"}).streamReader(value), OptionError),
        (TidegateSource(READ).streamReader(StructType().add("value", "integer")), SchemaError),
    ):
        with pytest.raises(problem):
            reader.getDefaultReadLimit()
        with pytest.raises(problem):
            reader.initialOffset()
        with pytest.raises(problem):
            reader.latestOffset(start, ReadAllAvailable())
        with pytest.raises(problem):
            reader.partitions(start, start)
