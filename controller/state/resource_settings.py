"""The settings of what is neither a topic nor a node: of consumer groups (KIP-848), and of subscriptions to
clients' metrics (KIP-714).  Which there are, their defaults, and what is wrong with a value, in Kafka's
words.

Groups of the kinds that Tidegate does not serve (share, streams) have their settings all the same: they are
kept and checked as Kafka does, so that what an operator prepared is there.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ...storage.topic_config import split_list
from ...wire.errors import ErrorCode, KafkaError


class ResourceType(IntEnum):
    """Kafka's numbers for what has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigKind(IntEnum):
    """Kafka's numbers for the kinds of values."""

    STRING = 2
    INT = 3
    LIST = 7


@dataclass(slots=True, frozen=True)
class ResourceSetting:
    """One setting.  `minimum` is below what a number can ever be; the bounds of a cluster are
    GroupLimits'."""

    default: str
    kind: ConfigKind
    documentation: str
    minimum: int = -(2**31)


GroupLimits = Mapping[str, tuple[int, int]]
"""Setting of a group -> (lowest, highest) value in this cluster."""

CONSUMER_SESSION: Final = "consumer.session.timeout.ms"
CONSUMER_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"

INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000

GROUP_LIMITS: Final[GroupLimits] = {
    CONSUMER_HEARTBEAT: (5000, 15_000),
    CONSUMER_SESSION: (45_000, 60_000),
    "share.heartbeat.interval.ms": (5000, 15_000),
    "share.session.timeout.ms": (45_000, 60_000),
    "share.record.lock.duration.ms": (15_000, 60_000),
    "streams.heartbeat.interval.ms": (5000, 15_000),
    "streams.session.timeout.ms": (45_000, 60_000),
    "streams.num.standby.replicas": (0, 2),
}

_SESSION: Final = "A member of the group that is silent for so long is removed."
_HEARTBEAT: Final = "How often the group's members are to say that they live."

GROUP_SETTINGS: Final[Mapping[str, ResourceSetting]] = {
    CONSUMER_HEARTBEAT: ResourceSetting("5000", ConfigKind.INT, _HEARTBEAT, 1),
    CONSUMER_SESSION: ResourceSetting("45000", ConfigKind.INT, _SESSION, 1),
    "share.auto.offset.reset": ResourceSetting("latest", ConfigKind.STRING, "Where a share group begins."),
    "share.heartbeat.interval.ms": ResourceSetting("5000", ConfigKind.INT, _HEARTBEAT, 1),
    "share.isolation.level": ResourceSetting(
        "read_uncommitted", ConfigKind.STRING, "What a share group reads of transactions."
    ),
    "share.record.lock.duration.ms": ResourceSetting(
        "30000", ConfigKind.INT, "How long a share group's record is lent.", 1000
    ),
    "share.session.timeout.ms": ResourceSetting("45000", ConfigKind.INT, _SESSION, 1),
    "streams.heartbeat.interval.ms": ResourceSetting("5000", ConfigKind.INT, _HEARTBEAT, 1),
    "streams.num.standby.replicas": ResourceSetting(
        "0", ConfigKind.INT, "Standby replicas of a streams group's tasks.", 0
    ),
    "streams.session.timeout.ms": ResourceSetting("45000", ConfigKind.INT, _SESSION, 1),
}

CLIENT_METRICS_SETTINGS: Final[Mapping[str, ResourceSetting]] = {
    INTERVAL: ResourceSetting("300000", ConfigKind.INT, "How often a client pushes these metrics."),
    MATCH: ResourceSetting(
        "", ConfigKind.LIST, "Which clients: client_id=pattern and the like, all of which fit; none: all."
    ),
    METRICS: ResourceSetting("", ConfigKind.LIST, "Prefixes of the metrics that are wanted; *: all."),
}

SETTINGS_OF: Final[Mapping[int, Mapping[str, ResourceSetting]]] = {
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_SETTINGS,
    ResourceType.GROUP: GROUP_SETTINGS,
}
"""The settings of each type of resource that the metadata keep by name."""

# Of a number of 32 bits, also with a sign.
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_DURATION = re.compile(r"P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d{0,9})?S)?)?", re.IGNORECASE)
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
# What a client can be chosen by.
_SELECTORS: Final = frozenset(
    {"client_instance_id", "client_id", "client_software_name", "client_software_version",
        "client_source_address",
     "client_source_port"}
)  # fmt: skip
_PATTERN_LENGTH_MAX: Final = 1024
_PATTERN_MEMORY_BYTES_MAX: Final = 1 << 20


def check_config(kind: int, config: Mapping[str, str], limits: GroupLimits = GROUP_LIMITS) -> None:
    """Raises KafkaError when these cannot be the settings of a resource of this type."""
    if kind == ResourceType.GROUP:
        _check_group(config, limits)
    else:
        _check_client_metrics(config)


def _check_group(config: Mapping[str, str], limits: GroupLimits) -> None:
    for name in config:
        if name not in GROUP_SETTINGS:
            raise _invalid(f"Unknown group config name: {name}")
    numbers = {
        name: _number(GROUP_SETTINGS[name], name, value)
        for name, value in _with_defaults(config)
        if name in limits
    }
    for name, check in _TEXTS.items():
        if name in config and not check(config[name]):
            raise _invalid(f"Invalid value {config[name]} for configuration {name}: {_WANTED[name]}")
    for name, (low, high) in limits.items():
        if name not in config:
            continue
        kind, _, rest = name.partition(".")
        if numbers[name] < low:
            raise _invalid(f"{name} must be greater than or equal to group.{kind}.min.{rest}")
        if numbers[name] > high:
            most = rest.removeprefix("num.") if kind == "streams" else rest
            raise _invalid(f"{name} must be less than or equal to group.{kind}.max.{most}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if numbers[session] <= numbers[heartbeat]:
            raise _invalid(f"{session} must be greater than {heartbeat}")


def _with_defaults(config: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, config.get(name, setting.default)) for name, setting in GROUP_SETTINGS.items()]


def _number(setting: ResourceSetting, name: str, text: str) -> int:
    """Raises INVALID_CONFIG."""
    text = text.strip()
    if not _NUMBER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise _invalid(f"Invalid value {text[:100]} for configuration {name}: Not a number of type INT")
    if int(text) < setting.minimum:
        raise _invalid(
            f"Invalid value {text} for configuration {name}: Value must be at least {setting.minimum}"
        )
    return int(text)


def _is_offset_reset(value: str) -> bool:
    kind, _, duration = value.partition(":")
    return value in ("earliest", "latest") or (
        kind == "by_duration" and _DURATION.fullmatch(duration) is not None
    )


_TEXTS: Final[Mapping[str, Callable[[str], bool]]] = {
    "share.auto.offset.reset": _is_offset_reset,
    "share.isolation.level": lambda value: value in _ISOLATION_LEVELS,
}
_WANTED: Final[Mapping[str, str]] = {
    "share.auto.offset.reset": (
        "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    ),
    "share.isolation.level": f"String must be one of: {', '.join(_ISOLATION_LEVELS)}",
}


def _check_client_metrics(config: Mapping[str, str]) -> None:
    for name in config:
        if name not in CLIENT_METRICS_SETTINGS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    if INTERVAL in config:
        interval = _number(CLIENT_METRICS_SETTINGS[INTERVAL], INTERVAL, config[INTERVAL])
        if not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
            message = (
                f"Invalid value {interval} for {INTERVAL}, interval must be between {INTERVAL_MS_MIN} "
                f"and {INTERVAL_MS_MAX}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{message} (1 hour)")
    matching_patterns(config.get(MATCH, ""))


class ClientPattern:
    """A regular expression of RE2: however it is made, it takes time in proportion to what it is held
    against."""

    def __init__(self, pattern: str) -> None:
        import re2  # most nodes never see a pattern

        options = re2.Options()
        options.log_errors, options.never_capture, options.max_mem = False, True, _PATTERN_MEMORY_BYTES_MAX
        try:
            self._compiled = re2.compile(pattern, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(pattern) from error

    def fits(self, text: str) -> bool:
        """The whole text; one that is no text fits nothing."""
        try:
            return self._compiled.fullmatch(text) is not None
        except UnicodeEncodeError:
            return False


def matching_patterns(text: str) -> dict[str, ClientPattern]:
    """What a client must be like, by selector.  Raises INVALID_CONFIG."""
    patterns = {}
    for part in split_list(text):
        selector, equals, pattern = part.partition("=")
        selector, pattern = selector.strip(), pattern.strip()
        try:
            if not equals or selector not in _SELECTORS or not pattern or len(pattern) > _PATTERN_LENGTH_MAX:
                raise ValueError
            patterns[selector] = ClientPattern(pattern)
        except ValueError as error:
            raise _invalid(f"Illegal client matching pattern: {part[:200]}") from error
    return patterns


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
