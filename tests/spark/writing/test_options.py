"""Options of a write are read as Spark hands them over, and what cannot be meant is refused with a remedy."""

from __future__ import annotations

import pickle
import re

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import StructType
from tidegate.spark.options import INT32_MAX, INT64_MAX, OptionError
from tidegate.spark.source import TidegateSource
from tidegate.spark.writing.options import (
    PRODUCER_DEFAULT,
    RETRY_TIMEOUT_MS_MAX,
    WriteOptions,
    parse_write_options,
)

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
        ({"failOnReplayMismatch": "no"}, "failOnReplayMismatch 'no' must be true or false"),
        ({"jobId": "17"}, "digits alone number the batches of a sink"),
        ({"jobId": "a/b"}, "characters other than /"),
        ({"jobId": "x" * 65}, "1 to 64 bytes"),
        ({"batchId": "7"}, "batchId '7' without 'sinkId': give both"),
        ({"batchId": "-1", "sinkId": "etl"}, "batchId '-1' must be a whole number"),
        ({"batchId": str(1 << 63), "sinkId": "etl"}, "batchId .* must be a whole number"),
        ({"batchId": "\u0667", "sinkId": "etl"}, "must be a whole number"),
        ({"batchId": "7", "jobId": "a", "sinkId": "etl"}, "name the same batch: give one of them"),
        ({"jobId": "unnamed-1", "sinkId": "etl"}, "begins the names of batches that have no jobId"),
        ({"jobId": "day-2026-11-23"}, "without 'sinkId': give both.*the same jobId would write nothing"),
        ({"sinkId": ""}, "1 to 200 bytes"),
        ({"sinkId": "a\nb"}, "only printable"),
        ({"sinkId": "\ud800"}, "only printable"),
        ({"jobBootstrap": "a:²"}, "is not host:port"),
        ({"jobBootstrap": "a:" + "9" * 5_000}, "is not host:port"),
        ({"jobTimeoutMs": "5"}, "at least 1000"),
        ({"retryTimeoutMs": "5s"}, "whole number"),
        ({"jobBootstrap": "nowhere"}, "jobBootstrap 'nowhere' is not host:port"),
        ({"kafka.security.protocol": "SSL"}, "with kafka.security.protocol=SSL .*'jobBootstrap' is needed"),
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


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("jobTimeoutMs", INT32_MAX),
        ("retryTimeoutMs", RETRY_TIMEOUT_MS_MAX),
        ("kafka.batch.size", INT32_MAX),
        ("kafka.linger.ms", INT64_MAX),
        ("kafka.buffer.memory", INT64_MAX),
        ("kafka.max.request.size", INT32_MAX),
        ("kafka.delivery.timeout.ms", INT32_MAX),
        ("kafka.request.timeout.ms", INT32_MAX),
        ("kafka.max.block.ms", INT64_MAX),
        ("kafka.max.in.flight.requests.per.connection", INT32_MAX),
    ],
)
def test_a_number_that_no_request_can_hold_is_refused_by_its_name(name: str, most: int) -> None:
    parse(**{name: str(most)})
    for text in (str(most + 1), "9" * 310, "9" * 5_000, "-" + "9" * 5_000):
        with pytest.raises(OptionError, match=f"^{re.escape(name)} .* must be a whole number") as found:
            parse(**{name: text})
        assert len(str(found.value)) < 300


def test_a_batch_fits_into_a_request() -> None:
    sizes = {"kafka.batch.size": "200000", "kafka.max.request.size": "100000"}
    assert parse(**sizes).producer.batch_bytes == 100_000


def test_security_that_cannot_be_meant_is_refused_before_a_task_begins() -> None:
    with pytest.raises(OptionError, match="PLAINTEXTS"):
        parse(**{"kafka.security.protocol": "PLAINTEXTS"})


def test_a_record_does_not_expire_while_it_lingers() -> None:
    lingers = {"kafka.linger.ms": "200000"}
    assert parse(**lingers).producer.delivery_timeout_s == 230
    longest = parse(**{"kafka.linger.ms": str(INT64_MAX)}).producer
    assert (longest.linger_ms, longest.delivery_timeout_s) == (INT32_MAX, INT32_MAX / 1000)
    assert parse(**lingers, **{"kafka.delivery.timeout.ms": "200000"}).producer.delivery_timeout_s == 200
    with pytest.raises(
        OptionError, match=r"kafka\.delivery\.timeout\.ms 199999 is less than kafka\.linger\.ms"
    ):
        parse(**lingers, **{"kafka.delivery.timeout.ms": "199999"})


def test_a_client_id_that_no_header_of_a_request_can_hold_is_refused() -> None:
    assert parse(**{"kafka.client.id": "x" * 32_767}).producer.client_id == "x" * 32_767
    for text in ("x" * 32_768, "é" * 16_384):
        with pytest.raises(OptionError, match=r"kafka\.client\.id must have at most 32767 bytes, not 32768"):
            parse(**{"kafka.client.id": text})


def test_a_long_name_of_an_option_is_shown_in_part() -> None:
    for name in ("o" * 10**6, "topic" + "c" * 10**6):
        with pytest.raises(OptionError, match="unknown option") as found:
            parse(**{name: "1"})
        assert len(str(found.value)) < 1_500


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "a/b", "é", "a\n", "x" * 250, "\ud800"])
def test_a_topic_that_no_broker_makes_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="a topic's name has 1 to 249"):
        parse(topic=topic)


def test_every_name_of_a_topic_is_taken() -> None:
    for topic in ("a", "...", ".a", "..b", "A-b_c.9", "x" * 249):
        assert parse(topic=topic).topic == topic


def test_a_batch_of_a_sink_has_a_name_or_a_number() -> None:
    assert parse(sinkId="etl", jobId="day-7").job == "day-7"
    assert parse(sinkId="etl", batchId="007").job == "7"  # one number, one job


def test_other_rows_of_a_batch_that_is_committed_are_accepted_on_demand() -> None:
    assert parse().fail_on_replay_mismatch
    assert not parse(failonreplaymismatch=" False").fail_on_replay_mismatch


def test_the_bootstrap_is_needed() -> None:
    with pytest.raises(OptionError, match="give Kafka listeners of some nodes"):
        parse_write_options({"topic": "t"})


def test_no_password_is_shown() -> None:
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="secret";'
    options = parse_write_options(
        BASE
        | {
            "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": login, "jobBootstrap": "g:1",
        }
    )  # fmt: skip
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": "t"}, "Kafka listeners"),
        ({"bootstrap": "a:1", "jobId": "7"}, "digits alone number the batches of a sink"),
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
