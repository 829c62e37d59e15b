"""The table of the settings of brokers that clients set while the brokers run (KIP-226): name, type, range,
meaning.  Pure, as the table of topics is.  (Plans that change them: `planning/settings/node_settings.py`; the
settings of a node's file: `node/settings/definitions.py`.)

Names, types and what is accepted are Kafka's (`tests/node/test_kafka_settings.py`).  Those that give topics
their defaults are made from the table of topics; `topic_defaults.py` says what topics make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...storage.topic_config import TOPIC_CONFIGS, ConfigKey, ConfigType, shortened, wrong_value

CATCH_UP_SETTING: Final = "replica.catch.up.max.bytes.per.second"
CLEANER_SETTING: Final = "log.cleaner.io.max.bytes.per.second"
CLEANER_BACKOFF_SETTING: Final = "log.cleaner.backoff.ms"
CLEANER_BUFFER_SETTING: Final = "log.cleaner.dedupe.buffer.size"
LEADER_THROTTLE_SETTING: Final = "leader.replication.throttled.rate"
FOLLOWER_THROTTLE_SETTING: Final = "follower.replication.throttled.rate"
LOG_DIRS_THROTTLE_SETTING: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
CONNECTIONS_SETTING: Final = "max.connections"
CONNECTIONS_PER_IP_SETTING: Final = "max.connections.per.ip"
CONNECTIONS_OVERRIDES_SETTING: Final = "max.connections.per.ip.overrides"
PRODUCER_ID_EXPIRATION_SETTING: Final = "producer.id.expiration.ms"

_INT_MAX: Final = str(2**31 - 1)
_BUFFER_MIN: Final = 1 << 20


@dataclass(slots=True, frozen=True)
class BrokerSetting:
    """`default`: what holds without a value, as DescribeConfigs shows it; None: nothing of its own.
    `of_cluster`: the controller acts on it, or replicas must agree on it, so there is one value for all
    brokers."""

    key: ConfigKey
    default: str | None
    of_cluster: bool = False
    topic_key: str = ""

    def parse(self, text: str) -> str:
        """The value as it is kept.  Raises ValueError."""
        if not text.strip() and self.key.type not in (ConfigType.LIST, ConfigType.STRING):
            raise ValueError("must not be empty")
        value = self.key.parse(text)
        if self.key.name == "log.retention.ms" and value == "0":
            raise ValueError("must be -1 (no limit), or at least 1")
        if self.key.name == "compression.gzip.level" and value == "0":
            raise ValueError("must be -1, or 1 to 9")
        if self.key.name == CONNECTIONS_OVERRIDES_SETTING:
            connection_overrides(value)
        return value


# Kafka's own defaults come from other settings there (log.retention.hours), or are no settings of their own.
_WITHOUT_DEFAULT: Final = frozenset(
    {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms", "log.flush.interval.ms"}
)
_WITHOUT_MINIMUM: Final = frozenset({"log.retention.ms", "log.flush.interval.ms"})
_OF_CLUSTER: Final = frozenset(
    {"min.insync.replicas", "unclean.leader.election.enable", "log.cleanup.policy"}
)


def _of_topic(row: ConfigKey) -> BrokerSetting:
    name = row.broker_name
    meaning = f"{row.name} of topics that do not set it: {row.documentation}"
    minimum = None if name in _WITHOUT_MINIMUM else row.minimum
    key = replace(row, name=name, documentation=meaning, minimum=minimum, broker_name="")
    return BrokerSetting(
        key, None if name in _WITHOUT_DEFAULT else row.default, name in _OF_CLUSTER, row.name
    )


def _own(name: str, kind: ConfigType, default: str | None, doc: str, minimum: int = 0) -> BrokerSetting:
    return BrokerSetting(ConfigKey(name, kind, default or "", doc, minimum), default)


_T = ConfigType
BROKER_SETTINGS: Final[Mapping[str, BrokerSetting]] = {
    each.key.name: each
    for each in (
        _own(CATCH_UP_SETTING, _T.LONG, "0", "Most sent to replicas outside the ISR; 0: no limit."),
        _own(CLEANER_SETTING, _T.DOUBLE, str(32 << 20), "The cleaner's reads and writes; 0: no limit."),
        _own(
            CLEANER_BACKOFF_SETTING,
            _T.LONG,
            "15000",
            "How long the cleaner waits when there is nothing to clean.",
        ),
        _own(
            CLEANER_BUFFER_SETTING,
            _T.LONG,
            str(128 << 20),
            "Most memory of the cleaner's key map.",
            _BUFFER_MIN,
        ),
        _own(
            LEADER_THROTTLE_SETTING,
            _T.LONG,
            None,
            "Bytes a second that leaders send to throttled replicas outside the ISR.",
        ),
        _own(
            FOLLOWER_THROTTLE_SETTING,
            _T.LONG,
            None,
            "Bytes a second that throttled replicas outside the ISR fetch.",
        ),
        _own(
            LOG_DIRS_THROTTLE_SETTING,
            _T.LONG,
            None,
            "Bytes a second at which replicas move between data folders.",
        ),
        _own(CONNECTIONS_SETTING, _T.INT, "10000", "Connections of the Kafka listener.", 1),
        _own(
            CONNECTIONS_PER_IP_SETTING,
            _T.INT,
            _INT_MAX,
            "Connections of the Kafka listener from one address.",
            1,
        ),
        _own(
            CONNECTIONS_OVERRIDES_SETTING,
            _T.STRING,
            "",
            "address:connections, instead of max.connections.per.ip.",
        ),
        _own(
            PRODUCER_ID_EXPIRATION_SETTING,
            _T.INT,
            "86400000",
            "An idle producer id is forgotten after this long.",
            1,
        ),
        *(_of_topic(row) for row in TOPIC_CONFIGS.values() if row.broker_name),
    )
}


def parsed_setting(name: str, text: str) -> str:
    """The value as it is kept.  Raises ValueError with the whole sentence."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        raise ValueError(f"Cannot update these configs dynamically: Set({shortened(name)})")
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ValueError(wrong_value(name, text, error)) from None


def connection_overrides(text: str) -> dict[str, int]:
    """Address -> most connections, from `max.connections.per.ip.overrides`.  Raises ValueError."""
    found = {}
    for part in text.split(","):
        if not part.strip():
            continue
        address, separator, number = part.strip().rpartition(":")
        if not separator or not address or not number.isascii() or not number.isdigit() or len(number) > 10:
            raise ValueError(f"must be a list of address:connections, {shortened(part)!r} is not")
        found[address.strip("[]")] = int(number)
    return found
