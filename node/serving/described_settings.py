"""Settings of topics and brokers as DescribeConfigs answers them: value, source, synonyms, under Kafka's
names and types.

The sources of a value are Kafka's, in its order: a run-time setting of this broker, one of all brokers, the
broker's file, the default; for a topic's setting, under the name that the setting has on the broker.  A
broker's settings that have another name in Kafka stand under both; `FIXED` are settings of Kafka that are
what they are here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import Final

from ...controller.state.broker_settings import BROKER_SETTINGS
from ...controller.state.model import ALL_NODES, INTERNAL_TOPICS, TopicState
from ...controller.state.topic_defaults import NodeConfigs, inherited
from ...storage.topic_config import TOPIC_CONFIGS, ConfigType
from ..cluster.internal_topics import STATE_SEGMENT_BYTES
from ..settings.configuration import Configuration
from ..settings.definitions import SETTINGS

SOURCE_TOPIC: Final = 1
SOURCE_DYNAMIC_BROKER: Final = 2
SOURCE_DYNAMIC_ALL_BROKERS: Final = 3
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5

_SHORT: Final = 4
PASSWORD: Final = 9
_UNKNOWN: Final = 0
_UNKNOWN_DOC: Final = "not known to this node's version: it has no effect here"
_KINDS: Final = {bool: 1, str: 2, int: 3, list: 7}
# Of numbers in a node's file, those that are no INT in Kafka; of Tidegate's own, those that may be larger; of
# lists, those that are one text in Kafka.
_TYPES: Final = {
    "advertised.listeners": ConfigType.STRING.value,
    "connections.max.idle.ms": ConfigType.LONG.value,
    "connections.max.reauth.ms": ConfigType.LONG.value,
    "controller.listener.names": ConfigType.STRING.value,
    "cut.retention.max.ms": ConfigType.LONG.value,
    "delegation.token.expiry.check.interval.ms": ConfigType.LONG.value,
    "delegation.token.expiry.time.ms": ConfigType.LONG.value,
    "delegation.token.max.lifetime.ms": ConfigType.LONG.value,
    "leader.imbalance.check.interval.seconds": ConfigType.LONG.value,
    "log.dirs": ConfigType.STRING.value,
    "listener.security.protocol.map": ConfigType.STRING.value,
    "listeners": ConfigType.STRING.value,
    "log.damaged.retention.bytes": ConfigType.LONG.value,
    "log.damaged.retention.ms": ConfigType.LONG.value,
    "log.retention.check.interval.ms": ConfigType.LONG.value,
    "metadata.reserve.bytes": ConfigType.LONG.value,
    "offsets.topic.replication.factor": _SHORT,
    "queued.max.request.bytes": ConfigType.LONG.value,
    "replica.lag.time.max.ms": ConfigType.LONG.value,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": ConfigType.LONG.value,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": ConfigType.LONG.value,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": ConfigType.LONG.value,
    "transaction.state.log.replication.factor": _SHORT,
}

Synonym = tuple[str, str | None, int]
"""Name, value, source."""


@dataclass(frozen=True, slots=True)
class Described:
    """One setting; `synonyms` begin with the one that counts."""

    name: str
    value: str | None
    source: int
    kind: int
    documentation: str
    read_only: bool
    synonyms: Sequence[Synonym]
    secret: bool = False
    """Its value is not shown."""

    @property
    def shown(self) -> str | None:
        """The value as Kafka writes it: a DOUBLE as Java does, whatever was written down; synonyms are as
        they were written."""
        return (
            _as_java(self.value)
            if self.kind == ConfigType.DOUBLE.value and self.value is not None
            else self.value
        )


@dataclass(frozen=True, slots=True)
class _Fixed:
    kind: ConfigType
    value: str | None
    documentation: str


@dataclass(frozen=True, slots=True)
class _Named:
    """A setting under the name that it has in Kafka."""

    own: str
    kind: ConfigType
    value: Callable[[Configuration], str]


_T = ConfigType
FIXED: Final[Mapping[str, _Fixed]] = {
    "controlled.shutdown.enable": _Fixed(
        _T.BOOLEAN, "true", "A broker that is stopped by SIGTERM hands its leaderships over."
    ),
    "delete.topic.enable": _Fixed(_T.BOOLEAN, "true", "Topics can be deleted."),
    "group.coordinator.rebalance.protocols": _Fixed(_T.LIST, "classic,consumer", "The protocols of groups."),
    "log.retention.hours": _Fixed(_T.INT, "168", "What log.retention.ms is without a value, in hours."),
    "log.retention.minutes": _Fixed(_T.INT, None, "As log.retention.hours, in minutes."),
    "log.roll.hours": _Fixed(_T.INT, "168", "What log.roll.ms is without a value, in hours."),
    "log.roll.jitter.hours": _Fixed(_T.INT, "0", "What log.roll.jitter.ms is without a value, in hours."),
    "offsets.topic.segment.bytes": _Fixed(
        _T.INT, str(STATE_SEGMENT_BYTES), "segment.bytes of __consumer_offsets."
    ),
    "remote.log.storage.system.enable": _Fixed(_T.BOOLEAN, "false", "There is no tiered storage."),
    "transaction.partition.verification.enable": _Fixed(
        _T.BOOLEAN, "true", "A partition takes records of a transaction only when its coordinator knows that."
    ),
    "transaction.state.log.segment.bytes": _Fixed(
        _T.INT, str(STATE_SEGMENT_BYTES), "segment.bytes of __transaction_state."
    ),
}


KAFKA_NAMES: Final[Mapping[str, _Named]] = {
    "broker.id": _Named("node.id", _T.INT, lambda found: str(found.node_id)),
}

# What Kafka looks for, in this order, when the first has no value.
_BROKER_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
}


class DescribedSettings:
    """Of one broker, as of now."""

    def __init__(self, configuration: Configuration, node_configs: NodeConfigs) -> None:
        self._configuration = configuration
        self._node_configs = node_configs
        self._own = node_configs.get(configuration.node_id, {})
        self._of_all = node_configs.get(ALL_NODES, {})

    # --------------------------------------------------------------------------------------------------------
    # topics

    def of_topic(self, topic: TopicState) -> list[Described]:
        return self.of_new_topic(topic.name, topic.config)

    def of_new_topic(self, name: str, config: Mapping[str, str]) -> list[Described]:
        """What holds for a topic with these settings."""
        follows = (
            {} if name in INTERNAL_TOPICS else inherited(self._node_configs, self._configuration.node_id)
        )
        found = []
        for key, row in TOPIC_CONFIGS.items():
            synonyms = (
                self._synonyms(row.broker_name) if row.broker_name and name not in INTERNAL_TOPICS else []
            )
            if key in config:
                synonyms = [(key, config[key], SOURCE_TOPIC), *synonyms]
            source = synonyms[0][2] if synonyms else SOURCE_DEFAULT
            value = config.get(key) if key in config else follows.get(key, row.default)
            found.append(Described(key, value, source, row.type.value, row.documentation, False, synonyms))
        for key in sorted(config.keys() - TOPIC_CONFIGS.keys()):  # a later version set it
            synonyms = [(key, config[key], SOURCE_TOPIC)]
            found.append(Described(key, config[key], SOURCE_TOPIC, _UNKNOWN, _UNKNOWN_DOC, False, synonyms))
        return found

    # --------------------------------------------------------------------------------------------------------
    # brokers

    def of_broker(self) -> list[Described]:
        found = [self._of_file(name) for name in SETTINGS]
        others = [name for name in BROKER_SETTINGS if name not in SETTINGS]
        found += [
            self._dynamic(name)
            for name in others
            if BROKER_SETTINGS[name].default is not None or self._is_shown(name)
        ]
        found += [self._under_kafkas_name(name, each) for name, each in KAFKA_NAMES.items()]
        found += [self._fixed(name, each) for name, each in FIXED.items()]
        return found

    def of_all_brokers(self) -> list[Described]:
        """Only what was set at run time (KIP-226)."""
        found = []
        for name in sorted(self._of_all):
            if name in BROKER_SETTINGS:
                value, key = self._of_all[name], BROKER_SETTINGS[name].key
                synonyms = [(name, value, SOURCE_DYNAMIC_ALL_BROKERS)]
                found.append(
                    Described(
                        name,
                        value,
                        SOURCE_DYNAMIC_ALL_BROKERS,
                        key.type.value,
                        key.documentation,
                        False,
                        synonyms,
                    )
                )
        return found

    def _is_shown(self, name: str) -> bool:
        """Kafka tells of throttles only when they are set, but of the other settings without a default
        always."""
        return bool(BROKER_SETTINGS[name].topic_key) or name in self._own or name in self._of_all

    def _of_file(self, name: str) -> Described:
        row, dynamic = SETTINGS[name], BROKER_SETTINGS.get(name)
        synonyms = self._synonyms(name)
        value, source = (synonyms[0][1], synonyms[0][2]) if synonyms else (None, SOURCE_DEFAULT)
        if row.secret:  # as Kafka answers for a PASSWORD
            hidden: list[Synonym] = [(each, None, where) for each, _, where in synonyms]
            return Described(name, None, source, PASSWORD, row.doc, True, hidden, secret=True)
        kind = dynamic.key.type.value if dynamic is not None else _TYPES.get(name, _KINDS[row.kind])
        return Described(name, value, source, kind, row.doc, dynamic is None, synonyms)

    def _dynamic(self, name: str) -> Described:
        key, synonyms = BROKER_SETTINGS[name].key, self._synonyms(name)
        value, source = (
            (synonyms[0][1], synonyms[0][2]) if synonyms else (BROKER_SETTINGS[name].default, SOURCE_DEFAULT)
        )
        return Described(name, value, source, key.type.value, key.documentation, False, synonyms)

    def _under_kafkas_name(self, name: str, named: _Named) -> Described:
        value, doc = named.value(self._configuration), f"{named.own}: {SETTINGS[named.own].doc}"
        source = SOURCE_DEFAULT if self._static(named.own) is None else SOURCE_STATIC_BROKER
        return Described(name, value, source, named.kind.value, doc, True, [(name, value, source)])

    def _fixed(self, name: str, fixed: _Fixed) -> Described:
        synonyms = [] if fixed.value is None else [(name, fixed.value, SOURCE_DEFAULT)]
        return Described(
            name, fixed.value, SOURCE_DEFAULT, fixed.kind.value, fixed.documentation, True, synonyms
        )

    # --------------------------------------------------------------------------------------------------------
    # synonyms

    def _synonyms(self, name: str) -> list[Synonym]:
        """All values that the setting has, the one that counts first.  Nothing before a value under its own
        name: that one would be another setting's (Kafka's rule)."""
        names = _BROKER_SYNONYMS.get(name, (name,))
        places: Iterable[tuple[Callable[[str], str | None], int]] = (
            (self._own.get, SOURCE_DYNAMIC_BROKER),
            (self._of_all.get, SOURCE_DYNAMIC_ALL_BROKERS),
            (self._static, SOURCE_STATIC_BROKER),
            (_default, SOURCE_DEFAULT),
        )
        found: list[Synonym] = [
            (each, value, source)
            for get, source in places
            for each in names
            if (value := get(each)) is not None
        ]
        first = next((at for at, synonym in enumerate(found) if synonym[0] == name), len(found))
        return found[first:]

    def _static(self, name: str) -> str | None:
        """What this node's file says, be it the default."""
        value = self._configuration.values.get(name)
        if name not in self._configuration.given and (
            name not in SETTINGS or value == SETTINGS[name].default
        ):
            return None
        return _text(value)


def _default(name: str) -> str | None:
    if name in SETTINGS:
        return _text(SETTINGS[name].default)
    if name in BROKER_SETTINGS:
        return BROKER_SETTINGS[name].default
    return FIXED[name].value if name in FIXED else None


def _text(value: object) -> str | None:
    if isinstance(value, list):
        return ",".join(value)
    return None if value is None else json.dumps(value) if isinstance(value, bool) else str(value)


def _as_java(text: str) -> str:
    """A number as Java's Double.toString has it: 1000000.0, 1.0E7, 5.0E-4."""
    number = float(text)
    if not isfinite(number):
        return text
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    mantissa, _, exponent = f"{Decimal(repr(number)):E}".partition("E")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
