"""Options of a write are read as Spark hands them over, and what cannot be meant is refused with a remedy."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import StructType
from tidegate.spark.options import OptionError
from tidegate.spark.source import TidegateSource
from tidegate.spark.writing.options import PRODUCER_DEFAULT, WriteOptions, parse_write_options

BASE = {"bootstrap": "a:1,b:2"}


def parse(**more: str) -> WriteOptions:
    return parse_write_options(BASE | more)


def test_defaults() -> None:
    assert parse() == WriteOptions(("a:1", "b:2"))
    assert PRODUCER_DEFAULT.numbered


def test_a_job_of_the_official_connector_moves_over_by_its_format() -> None:
    options = parse_write_options(
        {
            "kafka.bootstrap.servers": "h:9", "topic": "t", "checkpointlocation": "/c",
            "includeheaders": "true",
            "kafka.acks": "all", "kafka.compression.type": "ZSTD", "kafka.batch.size": "1000",
            "kafka.linger.ms": "7", "kafka.max.in.flight.requests.per.connection": "9",
            "kafka.delivery.timeout.ms": "5000", "kafka.retries": "3",
        }
    )  # fmt: skip
    producer = options.producer
    assert (options.bootstrap, options.topic, options.ignored) == (("h:9",), "t", ("kafka.retries",))
    assert (producer.compression, producer.batch_bytes, producer.linger_ms) == ("zstd", 1000, 7)
    assert (producer.delivery_timeout_s, options.requests_in_flight_max) == (5.0, 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": "t"}, "did you mean 'topic'"),
        ({"path": "/t"}, "take no path"),
        ({"subscribe": "t"}, "the options of a write are"),
        ({"kafka.bootstrap.servers": "other:1"}, "given twice"),
        ({"jobId": "17"}, "digits alone"),
        ({"jobId": "a/b"}, "characters other than /"),
        ({"jobId": "x" * 65}, "1 to 64 bytes"),
        ({"jobId": "day-2026-11-23"}, "without 'sinkId': give both.*the same jobId would write nothing"),
        ({"sinkId": ""}, "1 to 200 bytes"),
        ({"sinkId": "a\nb"}, "only printable"),
        ({"topic": ""}, "1 to 249 bytes"),
        ({"jobTimeoutMs": "5"}, "at least 1000"),
        ({"retryTimeoutMs": "5s"}, "whole number"),
        ({"jobBootstrap": "nowhere"}, "jobBootstrap 'nowhere' is not host:port"),
        ({"kafka.acks": "1"}, "only 'all' is possible"),
        ({"kafka.enable.idempotence": "false"}, "only 'true' is possible"),
        ({"kafka.transactional.id": "x"}, "name the sink in 'sinkId'"),
        ({"kafka.value.serializer": "x"}, "'value' is binary or string"),
        ({"kafka.compression.type": "brotli"}, "choose none"),
        ({"kafka.batch.size": "64k"}, "kafka.batch.size '64k' must be a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_write_options(BASE | given)


def test_the_bootstrap_is_needed() -> None:
    with pytest.raises(OptionError, match="give Kafka listeners of some nodes"):
        parse_write_options({"topic": "t"})


def test_no_password_is_shown() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="secret";'
    options = parse_write_options(
        BASE
        | {
            "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": login,
        }
    )  # fmt: skip
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "t"}, "Kafka listeners"),
        ({"bootstrap": "a:1", "jobId": "7"}, "digits alone"),
        ({"subscribe": "t"}, "'bootstrap' .* is missing"),
        ({"bootstrap": "a:1", "subscribe": "t", "endingOffset": "latest"}, "did you mean 'endingOffsets'"),
    ],
)
def test_the_source_says_what_is_wrong_with_what_was_meant(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TidegateSource(given)


def test_a_stream_of_a_spark_that_is_too_old_has_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    source = TidegateSource(BASE | {"topic": "t"})
    with pytest.raises(OptionError, match=r"PySpark 4\.1 or newer.*in foreachBatch"):
        source.streamWriter(StructType().add("value", "string"), False)
    source.writer(StructType().add("value", "string"), False)


def test_a_read_with_options_of_a_write_learns_what_a_read_needs() -> None:
    with pytest.raises(OptionError, match="exactly one of 'subscribe'"):
        TidegateSource(BASE).schema()
