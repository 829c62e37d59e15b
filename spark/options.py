"""The options of `spark.read.format("tidegate")` and `spark.readStream`: parsed once, on the driver, into one
frozen value.

The names are those of Spark's own Kafka connector wherever the meaning is the same, so that a job only
changes its format: `kafka.bootstrap.servers`, `kafka.isolation.level` and those of security
(`kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`) have an effect; other options of
Kafka's consumer or of that connector (`kafka.*`, fetch retries, groups; triggers in a batch read) have none
here, and one warning names them.  Spark lower-cases option names before a source sees them, hence the table
below is keyed by the lower case and error messages show the proper spelling.

The parser ignores no other option: an unknown name, two bounds for one side, or a bound that a batch read
("start at latest") or a stream ("end at ...") cannot have is an error that says what to write instead.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..security.properties import SECURITY_PROPERTIES
from .java_pattern import PatternError, compile_java_pattern

if TYPE_CHECKING:
    from ..client.consuming.cut import Cut
    from ..security.client_security import ClientSecurity

BYTES_PER_PARTITION_DEFAULT = 256 << 20
BYTES_PER_PARTITION_MIN = 1 << 10
DECOMPRESSED_PER_PARTITION_DEFAULT = 1 << 30
RETRY_TIMEOUT_MS_DEFAULT = 120_000
TRIGGER_DELAY_MS_DEFAULT = 15 * 60_000
SHARED_TASK_BYTES_DEFAULT = 1 << 20
MEMORY_PER_TASK_DEFAULT = 256 << 20
MEMORY_PER_TASK_MIN = 8 << 20
INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
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
    "cut",
    "consistency",
    "minPartitions",
    "maxBytesPerPartition",
    "maxDecompressedBytesPerPartition",
    "maxRecordsPerPartition",
    "maxMemoryPerTask",
    "includeHeaders",
    "readLocalFiles",
    "failOnDataLoss",
    "retryTimeoutMs",
)
_TRIGGER_NAMES = (
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "minBytesPerPartition",
)  # fmt: skip
_GROUP_NAMES = ("commitToGroup", "commitBootstrap")
_STREAM_NAMES = (*_TRIGGER_NAMES, *_GROUP_NAMES)
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_CUT_NAMES = ("cut", "consistency")
_SPELLING = {name.lower(): name for name in (*_NAMES, *_STREAM_NAMES)}
_ALIASES = {
    "tidegate.bootstrap.servers": "bootstrap",
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.isolation.level": "isolation",
}
_ELSEWHERE = {
    "path": "load() takes no path: name the topics in 'subscribe'",
    "topic": "name the topics to read in 'subscribe'",
}
_REFUSED = {
    "kafka.auto.offset.reset": "'startingOffsets' says where a read begins",
    "kafka.enable.auto.commit": "the checkpoint has the offsets; 'commitToGroup' commits them to a group",
    "kafka.key.deserializer": "the column 'key' is binary: cast it",
    "kafka.value.deserializer": "the column 'value' is binary: cast it",
}
"""What Spark's Kafka connector refuses, too."""
_OFFICIAL = frozenset(
    {
        "groupidprefix", "fetchoffset.numretries", "fetchoffset.retryintervalms",
        "kafkaconsumer.polltimeoutms",
    }
)  # fmt: skip
"""Options of Spark's Kafka connector that mean nothing to this source."""


class OptionError(ValueError):
    """An option that is missing, unknown or contradictory; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Topics:
    """`subscribe`: all partitions of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """`subscribePattern`: all partitions of all topics in whose name a regular expression of Java's is found;
    internal topics never match."""

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
    # a cut, or the name of a pinned one; then `ending` and `read_committed` have no meaning, and Topics(())
    # stands for all topics of the cut
    cut: Cut | str | None = None
    takes_cut: bool = False  # a new one: consistency=cut
    partitions_min: int | None = None
    partition_bytes_max: int = BYTES_PER_PARTITION_DEFAULT
    partition_decompressed_max: int = DECOMPRESSED_PER_PARTITION_DEFAULT
    partition_records_max: int | None = None
    task_memory_bytes: int = MEMORY_PER_TASK_DEFAULT
    include_headers: bool = False
    read_local_files: bool = True
    fail_on_data_loss: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS_DEFAULT
    # options of security, by Kafka's names; never shown: they have passwords
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # options of Kafka's consumer or Spark's Kafka connector, without effect here
    ignored: tuple[str, ...] = ()

    @property
    def reads_at_cut(self) -> bool:
        """Whether a cut says where the read ends and what it shows."""
        return self.takes_cut or self.cut is not None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream."""

    read: ReadOptions  # `starting` is where a new query begins; `ending` has no meaning
    offsets_max: int | None = None  # of a micro-batch
    offsets_min: int | None = None  # fewer wait for more, for `trigger_delay_ms` at most
    trigger_delay_ms: int = TRIGGER_DELAY_MS_DEFAULT
    bytes_max: int | None = None  # stored bytes of a micro-batch
    shared_task_bytes: int = SHARED_TASK_BYTES_DEFAULT  # until then small ranges share a task
    group: str | None = None  # gets the offsets of finished micro-batches
    group_bootstrap: tuple[str, ...] = ()  # Kafka listeners, for commits


_KAFKA: Final = "kafka."
SHOWN_MAX: Final = 100
"""Characters of a value in its error."""
_CUT_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def shown(value: object) -> str:
    """As it was given, in quotes, for a message: it may be long."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."


def client_security(properties: tuple[tuple[str, str], ...]) -> ClientSecurity | None:
    """Of `ReadOptions.security`, on the driver and in each task; None without any.  Raises OptionError."""
    if not properties:
        return None
    from ..runtime.connections.tls import TlsError
    from ..security.client_security import SecurityError, from_properties

    try:
        return from_properties(dict(properties))[0]
    except (SecurityError, TlsError) as error:
        raise OptionError(f"kafka.security.protocol: {error}") from None


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Reads and checks all options of a batch read; raises OptionError."""
    given, ignored, security = _normalise(options)
    groups = [name for name in _GROUP_NAMES if name in given]
    if groups:
        raise OptionError(f"option {groups[0]!r} belongs to readStream: a batch read commits no offsets")
    triggers = tuple(name for name in _TRIGGER_NAMES if name in given)
    starting = _bound(given, "starting", EARLIEST, useless=LATEST)
    ending = _bound(given, "ending", LATEST, useless=EARLIEST)
    _require_order(starting, ending)
    return _read_options(
        given,
        starting=starting,
        ending=ending,
        security=security,
        ignored=tuple(sorted((*ignored, *triggers))),
    )


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Reads and checks all options of a stream; raises OptionError."""
    given, ignored, security = _normalise(options)
    ends = [name for name in _ENDS if name in given]
    if ends:
        raise OptionError(
            f"option {ends[0]!r} belongs to a batch read: a stream has no end; to stop at what there is, use "
            "trigger(availableNow=True)"
        )
    if "cut" in given:
        raise OptionError(
            "option 'cut' belongs to a batch read: a stream whose micro-batches end at cuts has "
            "consistency=cut"
        )
    read = _read_options(
        given,
        starting=_bound(given, "starting", LATEST, useless=None),
        ending=EveryPartition(LATEST),
        security=security,
        ignored=ignored,
    )
    limits = [name for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger") if name in given]
    if read.takes_cut and limits:
        raise OptionError(
            f"option {limits[0]!r} does not go with 'consistency': a micro-batch ends at a cut, which no "
            "limit divides; a shorter interval between the triggers makes smaller ones"
        )
    fewest = whole_number(given, "minOffsetsPerTrigger", None, least=1)
    most = whole_number(given, "maxOffsetsPerTrigger", None, least=1)
    if fewest is not None and most is not None and fewest > most:
        raise OptionError(f"minOffsetsPerTrigger {fewest} is above maxOffsetsPerTrigger {most}")
    group = given.get("commitToGroup")
    if group is not None and not group.strip():
        raise OptionError("option 'commitToGroup' names no group")
    if group is None and "commitBootstrap" in given:
        raise OptionError("option 'commitBootstrap' has no meaning without 'commitToGroup'")
    where = given.get("commitBootstrap")
    return StreamOptions(
        read=read,
        offsets_max=most,
        offsets_min=fewest,
        trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", TRIGGER_DELAY_MS_DEFAULT),
        bytes_max=None
        if "maxBytesPerTrigger" not in given
        else _bytes(given, "maxBytesPerTrigger", 0, BYTES_PER_PARTITION_MIN),
        shared_task_bytes=_bytes(given, "minBytesPerPartition", SHARED_TASK_BYTES_DEFAULT, 0),
        group=group,
        group_bootstrap=read.bootstrap
        if where is None
        else parse_bootstrap(where, "commitBootstrap", "Kafka listeners"),
    )


def has_stream_options(options: Mapping[str, str]) -> bool:
    """Whether some of them belong to a stream alone."""
    return any(_SPELLING.get(name.lower()) in _STREAM_NAMES for name in options)


def _read_options(
    given: Mapping[str, str],
    *,
    starting: Bound,
    ending: Bound,
    security: tuple[tuple[str, str], ...],
    ignored: tuple[str, ...],
) -> ReadOptions:
    client_security(security)
    cut, takes_cut = _cut(given)
    at_cut = cut is not None or takes_cut
    return ReadOptions(
        bootstrap=parse_bootstrap(given.get("bootstrap", "")),
        selection=_selection(given, may_be_none=cut is not None),
        starting=starting,
        ending=ending,
        starting_after_last_is_error=_choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "error",
        read_committed=not at_cut
        and _choice(given, "isolation", ("read_committed", "read_uncommitted")) == "read_committed",
        cut=cut,
        takes_cut=takes_cut,
        partitions_min=whole_number(given, "minPartitions", None, least=1),
        partition_bytes_max=_bytes(
            given, "maxBytesPerPartition", BYTES_PER_PARTITION_DEFAULT, BYTES_PER_PARTITION_MIN
        ),
        partition_decompressed_max=_bytes(
            given,
            "maxDecompressedBytesPerPartition",
            DECOMPRESSED_PER_PARTITION_DEFAULT,
            BYTES_PER_PARTITION_MIN,
        ),
        partition_records_max=whole_number(given, "maxRecordsPerPartition", None, least=1),
        task_memory_bytes=_bytes(given, "maxMemoryPerTask", MEMORY_PER_TASK_DEFAULT, MEMORY_PER_TASK_MIN),
        include_headers=flag(given, "includeHeaders", default=False),
        read_local_files=flag(given, "readLocalFiles", default=True),
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        retry_timeout_ms=whole_number(given, "retryTimeoutMs", RETRY_TIMEOUT_MS_DEFAULT, least=0) or 0,
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
        if lower.startswith(_KAFKA) and lower.removeprefix(_KAFKA) in SECURITY_PROPERTIES:
            security[lower.removeprefix(_KAFKA)] = value
            continue
        if lower in _REFUSED:
            raise OptionError(f"option {shown(raw_name)} cannot be set: {_REFUSED[lower]}")
        if name is None and (lower in _OFFICIAL or lower.startswith("kafka.")):
            ignored.append(raw_name)
            continue
        if name is None:
            raise OptionError(_unknown(raw_name))
        if name in given and given[name] != value:
            raise OptionError(
                f"option {name!r} is given twice, as {shown(given[name])} and as {shown(value)}: keep one"
            )
        given[name] = value
    return given, tuple(sorted(ignored)), tuple(sorted(security.items()))


def _unknown(name: str) -> str:
    lower = name.lower()
    if lower in _ELSEWHERE:
        return f"option {name!r} is not used here: {_ELSEWHERE[lower]}"
    near = difflib.get_close_matches(lower[:SHOWN_MAX], [*_SPELLING, *_ALIASES], n=1, cutoff=0.6)
    if near:
        return f"unknown option {shown(name)}: did you mean {_SPELLING.get(near[0], near[0])!r}?"
    return (
        f"unknown option {shown(name)}: the options are {', '.join(_NAMES)}; of a stream also "
        f"{', '.join(_STREAM_NAMES)}"
    )


def parse_bootstrap(text: str, option: str = "bootstrap", wanted: str = "listeners") -> tuple[str, ...]:
    """The endpoints of host:port,host:port; raises OptionError."""
    endpoints = tuple(part.strip() for part in text.split(",") if part.strip())
    if not endpoints:
        name = "'bootstrap' (or 'kafka.bootstrap.servers')" if option == "bootstrap" else repr(option)
        raise OptionError(f"option {name} is missing: give {wanted} of some nodes, as host:port,host:port")
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":")
        if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise OptionError(f"{option} {shown(endpoint)} is not host:port")
    return endpoints


def _cut(given: Mapping[str, str]) -> tuple[Cut | str | None, bool]:
    """The cut to read at, or the name of one; and whether to take a new one."""
    asked = [name for name in _CUT_NAMES if name in given]
    if not asked:
        return None, False
    if len(asked) > 1:
        raise OptionError("options 'cut' and 'consistency' both say which cut is read: keep one")
    for name in (*_ENDS, "isolation"):
        if name in given:
            what = "which transactions are read" if name == "isolation" else "where each partition ends"
            raise OptionError(f"options {name!r} and {asked[0]!r} both say {what}: leave one of them out")
    text = given[asked[0]].strip()
    if asked == ["consistency"]:
        if text.lower() != "cut":
            raise OptionError(f"consistency {shown(text)} must be cut")
        return None, True
    if not text.startswith("{"):
        if not _CUT_NAME.fullmatch(text):
            raise OptionError(f"cut {shown(text)} is neither the name of a pinned cut nor the JSON of one")
        return text, False
    from ..client.consuming.cut import Cut, CutError

    try:
        return Cut.from_json(text), False
    except CutError as problem:
        raise OptionError(f"cut: {problem}") from None


def _selection(given: Mapping[str, str], *, may_be_none: bool = False) -> Selection:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if not chosen and may_be_none:
        return Topics(())
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
            raise OptionError(f"subscribePattern {shown(given['subscribePattern'])}: {problem}") from None
        return Pattern(given["subscribePattern"])
    return Partitions(_parse_assign(given["assign"]))


def _parse_assign(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"flights": [0, 1]}'
    tree = _json_object("assign", text, example)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in tree.items():
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(_is_partition(p) for p in partitions)
        ):
            raise OptionError(
                f"assign: topic {shown(topic)} needs a list of partition numbers, like {example}"
            )
        assigned[topic] = tuple(dict.fromkeys(partitions))
    if not assigned:
        raise OptionError(f"option 'assign' names no partition: write {example}")
    return assigned


def _bound(given: Mapping[str, str], side: str, default: int, *, useless: int | None) -> Bound:
    """`useless`: EARLIEST or LATEST, where a read with this bound would be empty."""
    names = [
        name for name in (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp") if name in given
    ]
    if len(names) > 1:
        raise OptionError(f"{' and '.join(map(repr, names))} both say where the read is {side}: keep one")
    if not names:
        return EveryPartition(default)
    name, value = names[0], given[names[0]].strip()
    if name.endswith("ByTimestamp"):
        return AtTimestamps(_per_partition(name, value, '{"flights": {"0": 1700000000000}}', least=0))
    if name.endswith("Timestamp"):
        return AtTimestamp(whole_number(given, name, None, least=0) or 0)
    word = {EARLIEST: "earliest", LATEST: "latest"}
    if value.lower() in ("earliest", "latest"):
        bound = EveryPartition(EARLIEST if value.lower() == "earliest" else LATEST)
        if bound.offset == useless:
            raise OptionError(
                f"{name} {shown(value)}: a batch read would be empty; write "
                f"{word[EARLIEST + LATEST - bound.offset]!r} or offsets"
            )
        return bound
    offsets = _per_partition(name, value, '{"flights": {"0": 23, "1": -2}}', least=EARLIEST)
    for (topic, partition), offset in offsets.items():
        if offset == useless:
            raise OptionError(
                f"{name}: {topic}-{partition} is {offset} ({word[offset]}): a batch read would be empty"
            )
    return AtOffsets(offsets)


def _require_order(starting: Bound, ending: Bound) -> None:
    """No range of a batch read ends before it begins, as far as the options alone tell."""
    match starting, ending:
        case AtTimestamp(start), AtTimestamp(end):
            pairs = {"": (start, end)}
        case (AtOffsets(starts), AtOffsets(ends)) | (AtTimestamps(starts), AtTimestamps(ends)):
            both = starts.keys() & ends.keys()
            known = (key for key in sorted(both) if min(starts[key], ends[key]) >= 0)
            pairs = {
                f" of {topic}-{number}": (starts[topic, number], ends[topic, number])
                for topic, number in known
            }
        case _:
            return
    what = "offset" if isinstance(starting, AtOffsets) else "timestamp"
    for place, (start, end) in pairs.items():
        if start > end:
            raise OptionError(f"the starting {what} {start}{place} is above its ending {what} {end}")


def _per_partition(name: str, text: str, example: str, *, least: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in _json_object(name, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{name}: topic {shown(topic)} needs an object of partitions, like {example}")
        for partition, number in partitions.items():
            if (
                not re.fullmatch(r"[0-9]{1,10}", partition)
                or int(partition) > INT32_MAX
                or isinstance(number, bool)
                or not isinstance(number, int)
                or not least <= number <= INT64_MAX
            ):
                raise OptionError(
                    f"{name}: {shown(topic)} has {shown(partition)}: {shown(number)}; write it like {example}"
                )
            found[topic, int(partition)] = number
    return found


def _json_object(name: str, text: str, example: str) -> dict[str, object]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise OptionError(
            f"{name} {shown(text)} is neither a known word nor JSON like {example}: {problem}"
        ) from None
    if not isinstance(tree, dict):
        raise OptionError(f"{name} {shown(text)} must be a JSON object like {example}")
    return tree


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX


def whole_number(
    given: Mapping[str, str], name: str, default: int | None, *, least: int, most: int = INT64_MAX
) -> int | None:
    """The value of an option that counts something; raises OptionError."""
    if name not in given:
        return default
    text = given[name].strip()
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise OptionError(
            f"{name} {shown(text)} must be a whole number of at least {least} and at most {most}"
        )
    return int(text)


def _bytes(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    """A size: `67108864`, `64m`, `64mb`, `1g`, as Spark writes them."""
    text = given.get(name, str(default)).strip().lower()
    parts = re.fullmatch(r"([0-9]{1,19})\s*([kmg]?)b?", text)
    size = int(parts[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[parts[2]] if parts else -1
    if not least <= size <= INT64_MAX:
        raise OptionError(
            f"{name} {shown(text)} must be a size of at least {least} bytes and at most {INT64_MAX}, like 64m"
        )
    return size


def _duration_ms(given: Mapping[str, str], name: str, default: int) -> int:
    """A time as Spark writes them: `500ms`, `30s`, `15m`, `1h`; a bare number counts milliseconds."""
    text = given.get(name, str(default)).strip().lower()
    parts = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|min|h|d|)", text)
    if parts is None:
        raise OptionError(f"{name} {shown(text)} must be a time like 500ms, 30s, 15m, 1h or 1d")
    unit = {"s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
    return int(parts[1]) * unit.get(parts[2], 1)


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of an option that is true or false; raises OptionError."""
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} {shown(text)} must be true or false")
    return text == "true"


def _choice(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """One of `words`; the first is the default."""
    text = given.get(name, words[0]).strip().lower()
    if text not in words:
        raise OptionError(f"{name} {shown(text)} must be one of {', '.join(words)}")
    return text
