"""Topic configuration: every key that a topic may carry, its type, range, default and meaning, and the log's
own view of it.

The table `TOPIC_CONFIGS` has name, type, bounds and default of each key: the controller validates with it,
and DescribeConfigs prints it.  Not in it: what a log makes of a key (`LogConfig`, below), from which level of
the metadata on it exists (`controller/state/features.py`), and whether a state topic may carry it
(`controller/planning/settings/topic_settings.py`).  Names, types, defaults and what is accepted are those of
Kafka 4.1 (`tests/node/test_kafka_settings.py` compares them with what a Kafka answered), with these stated
differences:

* `flush.policy` (ours) says when an acks=all write counts: `always` = flushed to disk by the in-sync
  replicas, `os` = Kafka's way, to which `flush.messages` and `flush.ms` add what they mean in Kafka;
* `record.check` (ours) can spare a leader the walk over the records' lengths, see `wire/record_check.py`:
  only for producers that are trusted, and with no effect on compacted topics;
* `segment.bytes` may be smaller than a mebibyte;
* `unclean.leader.election.enable` and `min.insync.replicas` mean what they mean in Kafka; the controller
  holds the rule that state topics refuse an unclean election;
* some keys of Kafka are kept and shown without effect: `preallocate`, `file.delete.delay.ms` and, at values
  that ask for nothing, those of tiered storage;
* all other keys are refused with the nearest known key in the message.

What a topic does not set itself it may inherit from its broker, under the name in `TopicConfig.broker_name`
(`controller/state/topic_defaults.py`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..wire.compression import Compression
from ..wire.errors import ErrorCode, KafkaError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_DAY_MS = 86_400_000
_INDEX_BYTES_MIN = 24
"""A smaller index would be full after a few entries."""


class ConfigType(Enum):
    """How a value is written; the names are those of Kafka's DescribeConfigs (number = its wire code)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class FlushPolicy(Enum):
    """What makes a write durable enough to count towards the high watermark."""

    ALWAYS = "always"
    OS = "os"


class TimestampType(Enum):
    """Whose clock stamps the records."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class CleanupPolicy(Enum):
    """What happens to old data; a topic may carry both."""

    DELETE = "delete"
    COMPACT = "compact"


_MOST = {ConfigType.INT: _INT32_MAX, ConfigType.LONG: _INT64_MAX}


@dataclass(slots=True, frozen=True)
class ConfigKey:
    """One key: type, default as text, allowed range or values, and a sentence for people.  `broker_name`: the
    setting of the broker that gives a topic its value when the topic has none (Kafka's synonym); empty when
    there is none."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str = ""
    pattern: str = ""
    """What each element of a list must look like."""
    unread: str | None = None
    """In place of a value that this version cannot read, where the default could remove records."""

    def parse(self, text: str) -> str:
        """The value as it is kept: read as Kafka's ConfigDef reads it, written in one way.  Raises
        ValueError, saying what is allowed, when `text` is no value for this key."""
        match self.type:
            case ConfigType.BOOLEAN:
                if text.strip().lower() not in ("true", "false"):
                    raise ValueError("must be true or false")
                return text.strip().lower()
            case ConfigType.INT | ConfigType.LONG:
                return str(self._in_range(_whole_number(text, self.type)))
            case ConfigType.DOUBLE:
                self._in_range(_number(text))
                return text.strip()
            case ConfigType.LIST:
                parts = [part.strip() for part in text.split(",")] if text.strip() else []
                for part in parts:
                    self._check_choice(part)
                if self.pattern and parts != ["*"]:
                    self._check_pattern(parts)
                return ",".join(parts)
            case _:
                self._check_choice(text)
                return text

    def _in_range(self, value: float) -> float:
        low = self.minimum if self.minimum is not None else (-_INT64_MAX - 1)
        high = self.maximum if self.maximum is not None else _MOST.get(self.type, math.inf)
        if not low <= value <= high:
            raise ValueError(
                f"Value must be at least {low}" if value < low else f"Value must be no more than {high}"
            )
        return value

    def _check_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            near = difflib.get_close_matches(text, self.choices, n=1)
            raise ValueError(
                f"must be one of {', '.join(self.choices)}"
                + (f" (did you mean {near[0]!r}?)" if near else "")
            )

    def _check_pattern(self, parts: list[str]) -> None:
        wrong = [part for part in parts if part and not re.fullmatch(self.pattern, part)]
        if wrong:
            raise ValueError(f"must be * or a list of partition:broker, such as 0:1,0:2; {wrong[0]!r} is not")


def _whole_number(text: str, kind: ConfigType) -> int:
    """A number as Java reads it: digits with a sign, blanks around them.  At most as many digits as a 64-bit
    number has: longer ones cost time, and Python rejects some."""
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text.strip()):
        raise ValueError(f"Not a number of type {kind.name}")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("Not a number of type DOUBLE")
    return value


def split_list(text: str) -> list[str]:
    """The elements of a LIST."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _table(*rows: ConfigKey) -> dict[str, ConfigKey]:
    return {row.name: row for row in rows}


COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
CLEANUP_POLICIES = ("delete", "compact")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_CODECS = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_REPLICA = r"[0-9]{1,10}:[0-9]{1,10}"
_C = ConfigKey
_T = ConfigType
TOPIC_CONFIGS: Mapping[str, ConfigKey] = _table(
    _C("cleanup.policy", _T.LIST, "delete", "delete old segments, compact by key, or both; empty: neither",
       choices=CLEANUP_POLICIES, broker_name="log.cleanup.policy", unread=""),
    _C("compression.gzip.level", _T.INT, "-1", "level of compression.type=gzip: 1 to 9, or -1 for gzip's own",
       -1, 9, broker_name="compression.gzip.level"),
    _C("compression.lz4.level", _T.INT, "9", "level of compression.type=lz4", 1, 17,
        broker_name="compression.lz4.level"),
    _C("compression.type", _T.STRING, "producer",
        "the codec in which batches are kept; producer: as they were sent",
       choices=COMPRESSION_TYPES, broker_name="compression.type"),
    _C("compression.zstd.level", _T.INT, "3", "level of compression.type=zstd", -131072, 22,
       broker_name="compression.zstd.level"),
    _C("delete.retention.ms", _T.LONG, str(_DAY_MS),
        "how long tombstones and markers stay readable after compaction", 0,
       broker_name="log.cleaner.delete.retention.ms", unread=str(_INT64_MAX)),
    _C("file.delete.delay.ms", _T.LONG, "60000", "in Kafka, how long a removed file stays; unused here",
        0,
       broker_name="log.segment.delete.delay.ms"),
    _C("flush.messages", _T.LONG, str(_INT64_MAX),
        "with flush.policy=os: so many unflushed records count only when flushed", 1,
       broker_name="log.flush.interval.messages"),
    _C("flush.ms", _T.LONG, str(_INT64_MAX),
        "with flush.policy=os: how long a record stays unflushed at most", 0,
       broker_name="log.flush.interval.ms"),
    _C("flush.policy", _T.STRING, "always",
        "when an acks=all write counts: flushed by the in-sync replicas, or only replicated",
       choices=("always", "os")),
    _C("follower.replication.throttled.replicas", _T.LIST, "",
        "partition:broker of the followers that are throttled; *: all",
       pattern=_REPLICA),
    _C("index.interval.bytes", _T.INT, "4096", "bytes of data between two entries of the offset index", 0,
       broker_name="log.index.interval.bytes"),
    _C("leader.replication.throttled.replicas", _T.LIST, "",
        "partition:broker of the leaders that are throttled; *: all",
       pattern=_REPLICA),
    _C("local.retention.bytes", _T.LONG, "-2", "of tiered storage, which is not there: without effect", -2,
       broker_name="log.local.retention.bytes"),
    _C("local.retention.ms", _T.LONG, "-2", "of tiered storage, which is not there: without effect", -2,
       broker_name="log.local.retention.ms"),
    _C("max.compaction.lag.ms", _T.LONG, str(_INT64_MAX),
        "a record is compacted at the latest after this time", 1,
       broker_name="log.cleaner.max.compaction.lag.ms"),
    _C("max.message.bytes", _T.INT, "1048588", "largest record batch, after compression", 0,
        broker_name="message.max.bytes"),
    _C("message.timestamp.after.max.ms", _T.LONG, "3600000",
        "how far a timestamp may lie ahead of the broker's clock", 0,
       broker_name="log.message.timestamp.after.max.ms"),
    _C("message.timestamp.before.max.ms", _T.LONG, str(_INT64_MAX),
        "how far a timestamp may lie behind the broker's clock", 0,
       broker_name="log.message.timestamp.before.max.ms"),
    _C("message.timestamp.type", _T.STRING, "CreateTime", "whose clock stamps records",
        choices=TIMESTAMP_TYPES,
       broker_name="log.message.timestamp.type"),
    _C("min.cleanable.dirty.ratio", _T.DOUBLE, "0.5",
        "share of uncompacted data that makes a log worth compacting", 0, 1,
       broker_name="log.cleaner.min.cleanable.ratio"),
    _C("min.compaction.lag.ms", _T.LONG, "0", "a record is not compacted before this time", 0,
       broker_name="log.cleaner.min.compaction.lag.ms", unread=str(_INT64_MAX)),
    _C("min.insync.replicas", _T.INT, "1", "acks=all writes need at least this many in-sync replicas", 1,
       broker_name="min.insync.replicas"),
    _C("preallocate", _T.BOOLEAN, "false", "in Kafka, files are made at their full size; without effect here",
       broker_name="log.preallocate"),
    _C("record.check", _T.BOOLEAN, "true",
        "whether a leader walks the records of a client's batch before it takes it"),
    _C("remote.log.copy.disable", _T.BOOLEAN, "false",
        "of tiered storage, which is not there: without effect"),
    _C("remote.log.delete.on.disable", _T.BOOLEAN, "false",
        "of tiered storage, which is not there: without effect"),
    _C("remote.storage.enable", _T.BOOLEAN, "false", "tiered storage, which is not there: only false"),
    _C("retention.bytes", _T.LONG, "-1",
        "size of a partition beyond which its oldest segments go; below 0 = no limit",
       broker_name="log.retention.bytes", unread="-1"),
    _C("retention.ms", _T.LONG, str(7 * _DAY_MS), "age beyond which segments go; -1 = no limit", -1,
       broker_name="log.retention.ms", unread="-1"),
    _C("segment.bytes", _T.INT, str(1 << 30), "size at which a new segment begins", 1024,
        broker_name="log.segment.bytes"),
    _C("segment.index.bytes", _T.INT, str(10 << 20), "size of an index file at which a new segment begins", 4,
       broker_name="log.index.size.max.bytes"),
    _C("segment.jitter.ms", _T.LONG, "0",
        "by age, a new segment begins up to so much earlier: not all logs roll at once", 0,
       broker_name="log.roll.jitter.ms"),
    _C("segment.ms", _T.LONG, str(7 * _DAY_MS), "age, by record timestamps, at which a new segment begins", 1,
       broker_name="log.roll.ms"),
    _C("unclean.leader.election.enable", _T.BOOLEAN, "false",
        "whether a replica that may lack acknowledged data may lead",
       broker_name="unclean.leader.election.enable"),
)  # fmt: skip
"""Every key a topic may carry.  Keys of the broker that shape logs but not topics are fields of `LogConfig`
only."""


def parsed_topic_config(
    config: Mapping[str, str], *, over: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The values as they are kept.  Raises INVALID_CONFIG naming the first wrong key or value; a misspelt key
    is answered with the nearest known one.  `over`: all that the topic will have, where `config` is what
    changes of it; what else stands there may be a later version's."""
    parsed = {}
    for key, text in config.items():
        known = TOPIC_CONFIGS.get(key)
        if known is None:
            near = difflib.get_close_matches(key, TOPIC_CONFIGS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {shortened(key)}{hint}")
        try:
            parsed[key] = known.parse(text)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, wrong_value(key, text, error)) from None
    together = {**(over or {}), **parsed}
    unread = unread_settings(together)
    effective = effective_topic_config({key: text for key, text in together.items() if key not in unread})
    if int(effective["min.compaction.lag.ms"]) > int(effective["max.compaction.lag.ms"]):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, "min.compaction.lag.ms must not be above max.compaction.lag.ms"
        )
    if effective["remote.storage.enable"] == "true":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, "tiered storage is not there: remote.storage.enable can only be false"
        )
    if effective["compression.gzip.level"] == "0":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, wrong_value("compression.gzip.level", "0", "must be -1 or 1 to 9")
        )
    return parsed


def shortened(text: str) -> str:
    """For a message: a value may be long."""
    return text if len(text) <= 100 else text[:97] + "..."


def wrong_value(name: str, text: str, reason: object) -> str:
    """Kafka's message for a wrong value; the reason lists the allowed values, in Kafka's words where it has
    some."""
    return f"Invalid value {shortened(text)} for configuration {name}: {reason}"


def effective_topic_config(config: Mapping[str, str]) -> dict[str, str]:
    """A value for every key of the table: `config` over the defaults.  What a later version wrote, a key or a
    value that this one does not know, has no effect; of a list, the parts that are known have theirs.  Never
    raises."""
    effective = {name: row.default for name, row in TOPIC_CONFIGS.items()}
    for name, text in config.items():
        value = _read(name, text)
        if value is not None:
            effective[name] = value
        elif name in TOPIC_CONFIGS:
            row = TOPIC_CONFIGS[name]
            known = (
                [part for part in split_list(text) if part in row.choices]
                if row.type is ConfigType.LIST
                else []
            )
            effective[name] = ",".join(known) or (row.default if row.unread is None else row.unread)
    return effective


def unread_settings(config: Mapping[str, str]) -> list[str]:
    """The names of the settings that this version cannot read, because a later version wrote them."""
    return sorted(name for name, text in config.items() if _read(name, text) is None)


def _read(name: str, text: str) -> str | None:
    row = TOPIC_CONFIGS.get(name)
    try:
        return None if row is None else row.parse(text)
    except ValueError:
        return None


@dataclass(slots=True, frozen=True)
class LogConfig:
    """What a log needs to know of its topic, as numbers; field names follow the topic keys."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    flush_policy: FlushPolicy = FlushPolicy.ALWAYS
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = _INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    producer_id_expiration_ms: int = _DAY_MS
    max_producer_ids: int = 100_000
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    cleanup_policy: frozenset[CleanupPolicy] = frozenset({CleanupPolicy.DELETE})
    delete_retention_ms: int = _DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _INT64_MAX
    record_check: bool = True
    flush_messages: int = _INT64_MAX
    flush_ms: int = _INT64_MAX
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    was_compacted: bool = False
    """About this log, not its topic: the policy was another one before, and the log may still have offset
    gaps."""

    target_codec: Compression | None = field(init=False)
    """The codec in which clients' batches are stored; None: that of their producer."""

    is_compacted: bool = field(init=False)
    """Follows from the cleanup policy; asked at every append."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_compacted", CleanupPolicy.COMPACT in self.cleanup_policy)
        object.__setattr__(self, "target_codec", _CODECS.get(self.compression_type))

    @property
    def compression_level(self) -> int | None:
        """Of the target codec; None when it has none."""
        match self.target_codec:
            case Compression.GZIP:
                return self.compression_gzip_level
            case Compression.LZ4:
                return self.compression_lz4_level
            case Compression.ZSTD:
                return self.compression_zstd_level
            case _:
                return None

    @property
    def may_have_offset_gaps(self) -> bool:
        """Whether offsets between batches may be missing without anything being lost: the cleaner was here,
        or may come."""
        return self.is_compacted or self.was_compacted

    @staticmethod
    def from_topic_config(
        config: Mapping[str, str],
        *,
        producer_id_expiration_ms: int = _DAY_MS,
        max_producer_ids: int = 100_000,
    ) -> LogConfig:
        """From a topic's configuration (only what differs from the defaults is needed), whichever version
        wrote it."""
        value = effective_topic_config(config).__getitem__

        def number(key: str) -> int:
            return int(value(key))

        return LogConfig(
            segment_bytes=number("segment.bytes"),
            segment_ms=number("segment.ms"),
            segment_jitter_ms=number("segment.jitter.ms"),
            segment_index_bytes=max(number("segment.index.bytes"), _INDEX_BYTES_MIN),
            index_interval_bytes=number("index.interval.bytes"),
            max_message_bytes=number("max.message.bytes"),
            record_check=value("record.check") == "true",
            flush_policy=FlushPolicy(value("flush.policy")),
            timestamp_type=TimestampType(value("message.timestamp.type")),
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
            producer_id_expiration_ms=producer_id_expiration_ms,
            max_producer_ids=max_producer_ids,
            retention_bytes=max(number("retention.bytes"), -1),
            retention_ms=max(number("retention.ms"), -1),
            cleanup_policy=frozenset(CleanupPolicy(part) for part in split_list(value("cleanup.policy"))),
            delete_retention_ms=number("delete.retention.ms"),
            min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            flush_messages=number("flush.messages"),
            flush_ms=number("flush.ms"),
            compression_type=value("compression.type"),
            compression_gzip_level=number("compression.gzip.level"),
            compression_lz4_level=number("compression.lz4.level"),
            compression_zstd_level=number("compression.zstd.level"),
        )
