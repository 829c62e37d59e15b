"""Topic configuration: every key that a topic may carry, its type, range, default and meaning, and the log's own view of it.

The table `TOPIC_CONFIGS` is the one truth: the controller validates with it, DescribeConfigs prints it, and `LogConfig` is made
from it.  Names, defaults and ranges are Kafka's, with five stated differences:

* `flush.policy` (ours) says when an acks=all write counts: `always` = flushed to disk by the in-sync replicas, `os` = Kafka's
  way;
* `record.check` (ours) can spare a leader the walk over the records' lengths, see `wire/record_check.py`: only for producers
  that are trusted, and with no effect on compacted topics;
* `compression.type` takes only `producer`: batches are stored exactly as they were sent, so a broker never compresses again;
* `unclean.leader.election.enable` and `min.insync.replicas` mean what they mean in Kafka; the controller holds the rule that
  state topics refuse an unclean election;
* keys that Tidegate gives no meaning to are refused instead of ignored, with the nearest known key in the message.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..wire.errors import ErrorCode, KafkaError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_DAY_MS = 86_400_000


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


@dataclass(slots=True, frozen=True)
class TopicConfig:
    """One key: type, default as text, allowed range or values, and a sentence for people."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        """Raises ValueError, saying what is allowed, when `text` is no value for this key."""
        match self.type:
            case ConfigType.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ValueError("must be true or false")
            case ConfigType.INT | ConfigType.LONG:
                number = _number(text, int)
                if text != str(number):  # `+2`, `0_2`: not everybody who reads it would read the same
                    raise ValueError(f"must be written as {number}")
                self._check_range(number)
            case ConfigType.DOUBLE:
                self._check_range(_number(text, float))
            case ConfigType.STRING:
                self._check_choice(text)
            case ConfigType.LIST:
                for part in _split(text):
                    self._check_choice(part)

    def _check_range(self, value: float) -> None:
        low = self.minimum if self.minimum is not None else (-_INT64_MAX - 1)
        high = self.maximum if self.maximum is not None else (_INT32_MAX if self.type is ConfigType.INT else _INT64_MAX)
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")

    def _check_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            near = difflib.get_close_matches(text, self.choices, n=1)
            raise ValueError(f"must be one of {', '.join(self.choices)}" + (f" (did you mean {near[0]!r}?)" if near else ""))


def _number(text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError("must be a whole number" if kind is int else "must be a number") from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _table(*rows: TopicConfig) -> dict[str, TopicConfig]:
    return {row.name: row for row in rows}


_C = TopicConfig
_T = ConfigType
TOPIC_CONFIGS: Mapping[str, TopicConfig] = _table(
    _C("cleanup.policy", _T.LIST, "delete", "delete old segments, compact by key, or both", choices=("delete", "compact")),
    _C("compression.type", _T.STRING, "producer", "batches keep the codec of their producer", choices=("producer",)),
    _C("delete.retention.ms", _T.LONG, str(_DAY_MS), "how long tombstones and markers stay readable after compaction", 0),
    _C("flush.policy", _T.STRING, "always", "when an acks=all write counts: flushed by the in-sync replicas, or only replicated",
       choices=("always", "os")),
    _C("index.interval.bytes", _T.INT, "4096", "bytes of data between two entries of the offset index", 0),
    _C("max.compaction.lag.ms", _T.LONG, str(_INT64_MAX), "a record is compacted at the latest after this time", 1),
    _C("max.message.bytes", _T.INT, "1048588", "largest record batch, after compression", 0),
    _C("message.timestamp.after.max.ms", _T.LONG, "3600000", "how far a timestamp may lie ahead of the broker's clock", 0),
    _C("message.timestamp.before.max.ms", _T.LONG, str(_INT64_MAX), "how far a timestamp may lie behind the broker's clock", 0),
    _C("message.timestamp.type", _T.STRING, "CreateTime", "whose clock stamps records", choices=("CreateTime", "LogAppendTime")),
    _C("min.cleanable.dirty.ratio", _T.DOUBLE, "0.5", "share of uncompacted data that makes a log worth compacting", 0, 1),
    _C("min.compaction.lag.ms", _T.LONG, "0", "a record is not compacted before this time", 0),
    _C("min.insync.replicas", _T.INT, "1", "acks=all writes need at least this many in-sync replicas", 1),
    _C("record.check", _T.BOOLEAN, "true", "whether a leader walks the records of a client's batch before it takes it"),
    _C("retention.bytes", _T.LONG, "-1", "size of a partition beyond which its oldest segments go; -1 = no limit", -1),
    _C("retention.ms", _T.LONG, str(7 * _DAY_MS), "age beyond which segments go; -1 = no limit", -1),
    _C("segment.bytes", _T.INT, str(1 << 30), "size at which a new segment begins", 1024),
    _C("segment.index.bytes", _T.INT, str(10 << 20), "size of an index file at which a new segment begins", 24),
    _C("segment.jitter.ms", _T.LONG, "0", "by age, a new segment begins up to so much earlier: not all logs roll at once", 0),
    _C("segment.ms", _T.LONG, str(7 * _DAY_MS), "age, by record timestamps, at which a new segment begins", 1),
    _C("unclean.leader.election.enable", _T.BOOLEAN, "false", "whether a replica that may lack acknowledged data may lead"),
)  # fmt: skip
"""Every key a topic may carry.  Keys of the broker that shape logs but not topics are fields of `LogConfig` only."""


def validate_topic_config(config: Mapping[str, str], *, over: Mapping[str, str] | None = None) -> None:
    """Raises INVALID_CONFIG naming the first wrong key or value; a misspelt key is answered with the nearest known one.  `over`:
    all that the topic will have, where `config` is what changes of it; what else stands there may be a later version's."""
    for key, text in config.items():
        known = TOPIC_CONFIGS.get(key)
        if known is None:
            near = difflib.get_close_matches(key, TOPIC_CONFIGS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown topic configuration {key!r}{hint}")
        try:
            known.check(text)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"invalid value {text!r} for {key}: it {error}") from None
    effective = effective_topic_config(config if over is None else over)
    if int(effective["min.compaction.lag.ms"]) > int(effective["max.compaction.lag.ms"]):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "min.compaction.lag.ms must not be above max.compaction.lag.ms")
    if not _split(effective["cleanup.policy"]):
        raise KafkaError(ErrorCode.INVALID_CONFIG, "cleanup.policy must name delete, compact, or both")


# Instead of a value that this version cannot read: no record is removed by a guess.
_UNREAD: Mapping[str, str] = {"cleanup.policy": "", "retention.bytes": "-1", "retention.ms": "-1"}


def effective_topic_config(config: Mapping[str, str]) -> dict[str, str]:
    """A value for every key of the table: `config` over the defaults.  What a later version wrote, a key or a value that this
    one does not know, has no effect; of a list, the parts that are known have theirs.  Never raises."""
    effective = {name: row.default for name, row in TOPIC_CONFIGS.items()}
    unread = unread_settings(config)
    for name, text in config.items():
        if name not in unread:
            effective[name] = text
        elif name in TOPIC_CONFIGS:
            row = TOPIC_CONFIGS[name]
            known = [part for part in _split(text) if part in row.choices] if row.type is ConfigType.LIST else []
            effective[name] = ",".join(known) or _UNREAD.get(name, row.default)
    return effective


def unread_settings(config: Mapping[str, str]) -> list[str]:
    """The names of the settings that this version cannot read: a later one wrote them."""
    return sorted(name for name, text in config.items() if not _is_readable(name, text))


def _is_readable(name: str, text: str) -> bool:
    row = TOPIC_CONFIGS.get(name)
    try:
        if row is not None:
            row.check(text)
    except ValueError:
        return False
    return row is not None


@dataclass(slots=True, frozen=True)
class LogConfig:
    """What a log needs to know of its topic, as numbers; field names are the topic keys with underscores."""

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
    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    record_check: bool = True
    was_compacted: bool = False
    """Of this log, not of its topic: the policy was another one once, and the log may still have holes from then."""

    is_compacted: bool = field(init=False)
    """Follows from the cleanup policy; asked at every append."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_compacted", CleanupPolicy.COMPACT in self.cleanup_policy)

    @property
    def may_have_holes(self) -> bool:
        """Whether offsets between batches may be missing without anything being lost: the cleaner was here, or may come."""
        return self.is_compacted or self.was_compacted

    @staticmethod
    def from_topic_config(
        config: Mapping[str, str], *, producer_id_expiration_ms: int = _DAY_MS, max_producer_ids: int = 100_000
    ) -> LogConfig:
        """From a topic's configuration (only what differs from the defaults is needed), whichever version wrote it."""
        value = effective_topic_config(config).__getitem__

        def number(key: str) -> int:
            return int(value(key))

        return LogConfig(
            segment_bytes=number("segment.bytes"),
            segment_ms=number("segment.ms"),
            segment_jitter_ms=number("segment.jitter.ms"),
            segment_index_bytes=number("segment.index.bytes"),
            index_interval_bytes=number("index.interval.bytes"),
            max_message_bytes=number("max.message.bytes"),
            record_check=value("record.check").lower() == "true",
            flush_policy=FlushPolicy(value("flush.policy")),
            timestamp_type=TimestampType(value("message.timestamp.type")),
            timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
            producer_id_expiration_ms=producer_id_expiration_ms,
            max_producer_ids=max_producer_ids,
            retention_bytes=number("retention.bytes"),
            retention_ms=number("retention.ms"),
            cleanup_policy=frozenset(CleanupPolicy(part) for part in _split(value("cleanup.policy"))),
            delete_retention_ms=number("delete.retention.ms"),
            min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=number("min.compaction.lag.ms"),
            max_compaction_lag_ms=number("max.compaction.lag.ms"),
            min_insync_replicas=number("min.insync.replicas"),
            unclean_leader_election=value("unclean.leader.election.enable").lower() == "true",
        )
