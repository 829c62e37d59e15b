"""The options of `spark.read.format("tidegate")`: parsed once, on the driver, into one frozen value.

The names are those of Spark's own Kafka connector wherever the meaning is the same, so that a job only
changes its format: `kafka.bootstrap.servers`, `kafka.isolation.level` and those of security
(`kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`) have an effect; other options of
Kafka's consumer or of that connector (`kafka.*`, fetch retries, groups, triggers) have none here, and one
warning names them.  Spark lower-cases option names before a source sees them, hence the table below is keyed
by the lower case and error messages show the proper spelling.

The parser ignores no other option: an unknown name, two bounds for one side, or a bound that a batch read
cannot have ("start at latest") is an error that says what to write instead.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..runtime.tls import TlsError
from ..security.client_security import PROPERTIES, ClientSecurity, SecurityError, from_properties
from .java_pattern import PatternError, compile_java_pattern

BYTES_PER_PARTITION_DEFAULT = 64 << 20
BYTES_PER_PARTITION_MIN = 1 << 10
DECOMPRESSED_PER_PARTITION_DEFAULT = 1 << 30
RETRY_TIMEOUT_MS_DEFAULT = 120_000
MEMORY_PER_TASK_DEFAULT = 256 << 20
MEMORY_PER_TASK_MIN = 8 << 20
EARLIEST = -2  # as in the JSON of Spark's Kafka connector
LATEST = -1

_NAMES = (
    "bootstrap",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "isolation",
    "minPartitions",
    "maxBytesPerPartition",
    "maxDecompressedBytesPerPartition",
    "maxRecordsPerPartition",
    "maxMemoryPerTask",
    "includeHeaders",
    "failOnDataLoss",
    "retryTimeoutMs",
)
_SPELLING = {name.lower(): name for name in _NAMES}
_ALIASES = {
    "tidegate.bootstrap.servers": "bootstrap",
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.isolation.level": "isolation",
}
_ELSEWHERE = {
    "path": "load() takes no path: name the topics in 'subscribe'",
    "topic": "name the topics to read in 'subscribe'",
}
_OFFICIAL = frozenset(
    {
        "groupidprefix", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms", "kafkaconsumer.polltimeoutms",
    }
)  # fmt: skip
"""Options of Spark's Kafka connector that mean nothing to a batch read of this source."""


class OptionError(ValueError):
    """An option that is missing, unknown or contradictory; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Topics:
    """`subscribe`: all partitions of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`subscribePattern`: all partitions of all topics whose whole name matches a regular expression of
    Java's; internal topics never match."""

    expression: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """`assign`: exactly these partitions."""

    by_topic: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EveryPartition:
    """One bound for all partitions: EARLIEST or LATEST."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every partition that is read; EARLIEST and LATEST count as offsets."""

    by_partition: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after this time, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """As AtTimestamp, with a time for every partition that is read."""

    by_partition: dict[tuple[str, int], int]


Selection = Topics | Pattern | Partitions
Bound = EveryPartition | AtOffsets | AtTimestamp | AtTimestamps


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one `load()`."""

    bootstrap: tuple[str, ...]
    selection: Selection
    starting: Bound = EveryPartition(EARLIEST)
    ending: Bound = EveryPartition(LATEST)
    starting_after_last_is_error: bool = True  # startingOffsetsByTimestampStrategy: error (else latest)
    read_committed: bool = True
    partitions_min: int | None = None
    partition_bytes_max: int = BYTES_PER_PARTITION_DEFAULT
    partition_decompressed_max: int = DECOMPRESSED_PER_PARTITION_DEFAULT
    partition_records_max: int | None = None
    task_memory_bytes: int = MEMORY_PER_TASK_DEFAULT
    include_headers: bool = False
    fail_on_data_loss: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    # options of security, by Kafka's names; never shown: they have passwords
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # options of Kafka's consumer or Spark's Kafka connector, without effect here
    ignored: tuple[str, ...] = ()


_KAFKA: Final = "kafka."


def client_security(properties: tuple[tuple[str, str], ...]) -> ClientSecurity | None:
    """Of `ReadOptions.security`, on the driver and in each task; None without any.  Raises OptionError."""
    if not properties:
        return None
    try:
        return from_properties(dict(properties))[0]
    except (SecurityError, TlsError) as error:
        raise OptionError(f"kafka.security.protocol: {error}") from None


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads and checks all options; raises OptionError."""
    given, ignored, security = _normalise(options)
    client_security(security)
    return ReadOptions(
        bootstrap=parse_bootstrap(given.get("bootstrap", "")),
        selection=_selection(given),
        starting=_bound(given, "starting"),
        ending=_bound(given, "ending"),
        starting_after_last_is_error=_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "error",
        read_committed=_choice(given, "isolation", ("read_committed", "read_uncommitted"))
        == "read_committed",
        partitions_min=_whole_number(given, "minPartitions", None, least=1),
        partition_bytes_max=_bytes(
            given, "maxBytesPerPartition", BYTES_PER_PARTITION_DEFAULT, BYTES_PER_PARTITION_MIN
        ),
        partition_decompressed_max=_bytes(
            given,
            "maxDecompressedBytesPerPartition",
            DECOMPRESSED_PER_PARTITION_DEFAULT,
            BYTES_PER_PARTITION_MIN,
        ),
        partition_records_max=_whole_number(given, "maxRecordsPerPartition", None, least=1),
        task_memory_bytes=_bytes(given, "maxMemoryPerTask", MEMORY_PER_TASK_DEFAULT, MEMORY_PER_TASK_MIN),
        include_headers=_flag(given, "includeHeaders", default=False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        retry_timeout_ms=_whole_number(given, "retryTimeoutMs", RETRY_TIMEOUT_MS_DEFAULT, least=0) or 0,
        security=security,
        ignored=ignored,
    )


def _normalise(
    options: Mapping[str, str],
) -> tuple[dict[str, str], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The options by their names, those without meaning, and those of security."""
    given: dict[str, str] = {}
    security: dict[str, str] = {}
    ignored: list[str] = []
    for raw_name, value in options.items():
        lower = raw_name.lower()
        name = _ALIASES.get(lower) or _SPELLING.get(lower)
        if lower.startswith(_KAFKA) and lower.removeprefix(_KAFKA) in PROPERTIES:
            security[lower.removeprefix(_KAFKA)] = value
            continue
        if name is None and (lower in _OFFICIAL or lower.startswith("kafka.")):
            ignored.append(raw_name)
            continue
        if name is None:
            raise OptionError(_unknown(raw_name))
        if name in given and given[name] != value:
            raise OptionError(
                f"option {name!r} is given twice, as {given[name]!r} and as {value!r}: keep one"
            )
        given[name] = value
    return given, tuple(sorted(ignored)), tuple(sorted(security.items()))


def _unknown(name: str) -> str:
    lower = name.lower()
    if lower in _ELSEWHERE:
        return f"option {name!r} is not used here: {_ELSEWHERE[lower]}"
    near = difflib.get_close_matches(lower, [*_SPELLING, *_ALIASES], n=1, cutoff=0.6)
    if near:
        return f"unknown option {name!r}: did you mean {_SPELLING.get(near[0], near[0])!r}?"
    return f"unknown option {name!r}: the options are {', '.join(_NAMES)}"


def parse_bootstrap(text: str) -> tuple[str, ...]:
    """The endpoints of host:port,host:port; raises OptionError."""
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    if not endpoints:
        raise OptionError(
            "option 'bootstrap' (or 'kafka.bootstrap.servers') is missing: give listeners of some "
            "nodes, as host:port,host:port"
        )
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise OptionError(f"bootstrap {endpoint!r} is not host:port")
    return endpoints


def _selection(given: Mapping[str, str]) -> Selection:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        found = f"both {' and '.join(map(repr, chosen))} are given" if chosen else "none is given"
        raise OptionError(f"exactly one of 'subscribe', 'subscribePattern' and 'assign' is needed: {found}")
    if chosen == ["subscribe"]:
        names = tuple(dict.fromkeys(part.strip() for part in given["subscribe"].split(",") if part.strip()))
        if not names:
            raise OptionError("option 'subscribe' names no topic: write topic,topic")
        return Topics(names)
    if chosen == ["subscribePattern"]:
        try:
            compile_java_pattern(given["subscribePattern"])
        except PatternError as problem:
            raise OptionError(f"subscribePattern {given['subscribePattern']!r}: {problem}") from None
        return Pattern(given["subscribePattern"])
    return Partitions(_parse_assign(given["assign"]))


def _parse_assign(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"flights": [0, 1]}'
    tree = _json_object("assign", text, example)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in tree.items():
        if not isinstance(partitions, list) or not partitions or not all(_is_count(p) for p in partitions):
            raise OptionError(f"assign: topic {topic!r} needs a list of partition numbers, like {example}")
        assigned[topic] = tuple(dict.fromkeys(partitions))
    if not assigned:
        raise OptionError(f"option 'assign' names no partition: write {example}")
    return assigned


def _bound(given: Mapping[str, str], side: str) -> Bound:
    names = [
        name for name in (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp") if name in given
    ]
    if len(names) > 1:
        raise OptionError(f"{' and '.join(map(repr, names))} both say where the read is {side}: keep one")
    if not names:
        return EveryPartition(EARLIEST if side == "starting" else LATEST)
    name, value = names[0], given[names[0]].strip()
    if name.endswith("ByTimestamp"):
        return AtTimestamps(_per_partition(name, value, '{"flights": {"0": 1700000000000}}', least=0))
    if name.endswith("Timestamp"):
        return AtTimestamp(_whole_number(given, name, None, least=0) or 0)
    useless = LATEST if side == "starting" else EARLIEST
    word = {EARLIEST: "earliest", LATEST: "latest"}
    if value.lower() in ("earliest", "latest"):
        bound = EveryPartition(EARLIEST if value.lower() == "earliest" else LATEST)
        if bound.offset == useless:
            raise OptionError(
                f"{name} {value!r}: a batch read would be empty; write "
                f"{word[EARLIEST + LATEST - useless]!r} or offsets"
            )
        return bound
    offsets = _per_partition(name, value, '{"flights": {"0": 23, "1": -2}}', least=EARLIEST)
    for (topic, partition), offset in offsets.items():
        if offset == useless:
            raise OptionError(
                f"{name}: {topic}-{partition} is {offset} ({word[offset]}): a batch read would be empty"
            )
    return AtOffsets(offsets)


def _per_partition(name: str, text: str, example: str, *, least: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in _json_object(name, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{name}: topic {topic!r} needs an object of partitions, like {example}")
        for partition, number in partitions.items():
            if (
                not partition.isdigit()
                or isinstance(number, bool)
                or not isinstance(number, int)
                or number < least
            ):
                raise OptionError(f"{name}: {topic!r} has {partition!r}: {number!r}; write it like {example}")
            found[topic, int(partition)] = number
    return found


def _json_object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        tree = json.loads(text)
    except ValueError as problem:
        raise OptionError(
            f"{name} {text!r} is neither a known word nor JSON like {example}: {problem}"
        ) from None
    if not isinstance(tree, dict):
        raise OptionError(f"{name} {text!r} must be a JSON object like {example}")
    return tree


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole_number(given: Mapping[str, str], name: str, default: int | None, *, least: int) -> int | None:
    if name not in given:
        return default
    text = given[name].strip()
    if not re.fullmatch(r"-?[0-9]+", text) or int(text) < least:
        raise OptionError(f"{name} {text!r} must be a whole number of at least {least}")
    return int(text)


def _bytes(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    """A size: `67108864`, `64m`, `64mb`, `1g`, as Spark writes them."""
    text = given.get(name, str(default)).strip().lower()
    parts = re.fullmatch(r"([0-9]+)\s*([kmg]?)b?", text)
    size = int(parts[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[parts[2]] if parts else -1
    if size < least:
        raise OptionError(f"{name} {text!r} must be a size of at least {least} bytes, like 64m")
    return size


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} {text!r} must be true or false")
    return text == "true"


def _choice(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of `words`; the first is the default."""
    text = given.get(name, words[0]).strip().lower()
    if text not in words:
        raise OptionError(f"{name} {text!r} must be one of {', '.join(words)}")
    return text
