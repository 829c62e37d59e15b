"""What is written through this sink and through Spark's Kafka connector: types of columns, options, modes.

A case selects its columns from twelve rows (`id`, a bigint from 0 on); `{t}` stands for the topic that it
writes to, and each sink has its own.  `differs` is why the outcomes may differ; a reason that is not needed
any more is a failure, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal[
    "append", "overwrite", "ignore", "default", "stream append", "stream complete", "stream update"
]

TEXT = "cast(id as string)"
BYTES = f"cast({TEXT} as binary)"
TO_TOPIC = {"topic": "{t}"}
IMPATIENT = {"kafka.max.block.ms": "3000"}
SOON = {"kafka.request.timeout.ms": "2000", "kafka.delivery.timeout.ms": "3000"}
CHECKED = "the connector ignores an option that it does not know; here it is an error that names it"
COLUMN = "the connector ignores a column that it does not know; here it is an error that names it"
TIME = "the connector has no such column and ignores it; here it is the record's timestamp"
EXACTLY_ONCE = "here it is an error: each row would not be written exactly once"
PYTHON = "Spark demands a mode of a sink in Python: `.mode('append')`"
UPDATE = (
    "Spark lets no sink in Python take the mode `update`: use `foreachBatch`, with `sinkId` and `batchId`"
)
BUFFER = "a Python sink needs room for one batch at least: 65,536 bytes"


@dataclass(frozen=True, slots=True)
class Write:
    """`columns` are expressions of Spark's SQL."""

    title: str
    columns: tuple[str, ...] = (f"{TEXT} as value",)
    options: Mapping[str, str] = field(default_factory=lambda: TO_TOPIC)
    mode: Mode = "append"
    differs: str = ""


def _types() -> list[Write]:
    headers = "array(struct('h' as key, cast('v' as binary) as value))"
    null_text, null_bytes = "cast(null as string)", "cast(null as binary)"
    of_null = f"array(struct('h' as key, {null_bytes} as value))"
    twice = f"array(struct('h' as key, {BYTES} as value), struct('h' as key, cast('' as binary) as value))"
    null_header = f"array(struct({null_text} as key, {BYTES} as value))"
    value = f"{TEXT} as value"
    return [
        Write("value string"),
        Write("value binary", (f"{BYTES} as value",)),
        Write("value null, string", (f"{TEXT} as key", f"{null_text} as value")),
        Write("value null, binary", (f"{TEXT} as key", f"{null_bytes} as value")),
        Write("value empty", (f"{TEXT} as key", "'' as value")),
        Write("value of more than one byte a character", ("concat('é€😀', id) as value",)),
        Write("value of 300 KB", ("repeat(cast(id % 10 as string), 300000) as value",)),
        Write("key string", (f"concat('key-', {TEXT}) as key", value)),
        Write("key binary", (f"{BYTES} as key", value)),
        Write("key of more than one byte a character", (f"concat('é€😀', {TEXT}) as key", value)),
        Write("key binary, not of text", ("unhex(lpad(hex(id * 1000003), 10, 'f')) as key", value)),
        Write("key null", (f"{null_text} as key", value)),
        Write("key empty", ("'' as key", value)),
        Write("headers", (value, f"{headers} as headers")),
        Write("headers null", (value, f"if(id % 2 = 0, {headers}, null) as headers")),
        Write("headers empty", (value, f"slice({headers}, 1, 0) as headers")),
        Write("a header's value null", (value, f"{of_null} as headers")),
        Write("headers of one key", (value, f"{twice} as headers")),
        Write("a header's key null", (value, f"{null_header} as headers")),
        Write("partition int", (value, "cast(id % 3 as int) as partition")),
        Write(
            "partition null for some",
            (f"{TEXT} as key", value, "if(id < 4, cast(id % 3 as int), null) as partition"),
        ),
        Write("partition that the topic does not have", (value, "7 as partition"), TO_TOPIC | IMPATIENT),
        Write("partition below 0", (value, "-1 as partition"), TO_TOPIC | IMPATIENT),
        Write("columns in another order", ("cast(id % 3 as int) as partition", value, f"{TEXT} as key")),
        Write("value int", ("cast(id as int) as value",)),
        Write("key bigint", ("id as key", value)),
        Write("partition bigint", (value, "id % 3 as partition")),
        Write("headers of text", (value, "array(struct('h' as key, 'v' as value)) as headers")),
        Write("headers a map", (value, "map('h', 'v') as headers")),
        Write("no value", (f"{TEXT} as key",)),
        Write("another column", (value, "id as weight"), differs=COLUMN),
        Write("the source's own columns", (value, "id as offset", "0 as timestampType")),
        Write("timestamp", (value, "timestamp_millis(1700000000000 + id) as timestamp"), differs=TIME),
    ]


def _topics() -> list[Write]:
    value = f"{TEXT} as value"
    return [
        Write("column topic", (value, "'{t}' as topic"), {}),
        Write("option topic before the column", (value, "'elsewhere' as topic")),
        Write("column topic null in a row", (value, "if(id = 3, null, '{t}') as topic"), {}),
        Write("column topic int", (value, "7 as topic"), {}),
        Write("neither option nor column", options={}),
        Write("a topic that is not there", options={"topic": "{t}-missing"} | IMPATIENT),
        Write("an invalid name", options={"topic": "a topic?"} | IMPATIENT),
    ]


def _options() -> list[Write]:
    def with_option(name: str, value: str, differs: str = "") -> Write:
        return Write(f"{name}={value}", options=TO_TOPIC | {name: value}, differs=differs)

    large = ("repeat('x', 5000) as value",)
    return [
        *(with_option("kafka.compression.type", each) for each in ("none", "gzip", "snappy", "lz4", "zstd")),
        with_option("kafka.compression.type", "brotli"),
        with_option("kafka.acks", "all"),
        with_option("kafka.acks", "-1"),
        with_option("kafka.acks", "1", EXACTLY_ONCE),
        with_option("kafka.acks", "0", EXACTLY_ONCE),
        with_option("kafka.enable.idempotence", "true"),
        with_option("kafka.enable.idempotence", "false", EXACTLY_ONCE),
        Write("kafka.transactional.id=x", options=TO_TOPIC | {"kafka.transactional.id": "x"} | SOON),
        with_option("kafka.key.serializer", "org.apache.kafka.common.serialization.StringSerializer"),
        with_option("kafka.value.serializer", "org.apache.kafka.common.serialization.StringSerializer"),
        with_option("kafka.batch.size", "100"),
        with_option("kafka.batch.size", "64k"),
        with_option("kafka.linger.ms", "50"),
        with_option("kafka.linger.ms", "-1"),
        with_option("kafka.buffer.memory", "65536"),
        with_option("kafka.buffer.memory", "40000", BUFFER),
        Write("kafka.max.request.size=2000", large, TO_TOPIC | {"kafka.max.request.size": "2000"}),
        Write("kafka.max.request.size=9000", large, TO_TOPIC | {"kafka.max.request.size": "9000"}),
        with_option("kafka.request.timeout.ms", "5000"),
        with_option("kafka.delivery.timeout.ms", "60000"),
        with_option("kafka.max.block.ms", "20000"),
        with_option("kafka.max.in.flight.requests.per.connection", "1"),
        with_option("kafka.client.id", "somebody"),
        with_option("kafka.retries", "3"),
        with_option("kafka.metadata.max.age.ms", "1000"),
        with_option("includeHeaders", "true"),
        with_option("INCLUDEHEADERS", "true"),
        with_option("topics", "x", CHECKED),
    ]


def _modes() -> list[Write]:
    value = (f"{TEXT} as key", "cast(count as string) as value")
    return [
        Write("no rows", (f"{TEXT} as value where id < 0",)),
        Write("mode append"),
        Write("mode overwrite", mode="overwrite"),
        Write("mode ignore", mode="ignore"),
        Write("no mode", mode="default", differs=PYTHON),
        Write("stream, output mode append", (f"{TEXT} as key", f"{TEXT} as value"), mode="stream append"),
        Write("stream, output mode complete", value, mode="stream complete"),
        Write("stream, output mode update", value, mode="stream update", differs=UPDATE),
    ]


WRITES = (*_types(), *_topics(), *_options(), *_modes())
