"""A node's settings: where they come from, what they mean, and clear words for what is wrong with them.

Order of precedence, the later wins: the defaults below, the TOML file (`--config`), the environment
(`TIDEGATE_` + the key in capitals with `_` for `.`: `TIDEGATE_NODE_ID=2`), the command line (`--set
key=value`).  Keys are Kafka's own where Kafka has one, so that an operator's knowledge carries over.  An
unknown key stops the node and names the key that was probably meant: a misspelt `min.insync.replicas` that is
silently ignored is how acknowledged data gets lost.

The strings of listeners, advertised addresses, data folders and TLS files may hold `{node.id}` and
`{hostname}`, so that one configuration serves all pods of a StatefulSet.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...controller.state.resource_settings import (
    CONSUMER_HEARTBEAT,
    CONSUMER_SESSION,
    GROUP_LIMITS,
    GroupLimits,
)
from ...coordinator.group.consumer.assignors import ASSIGNORS
from ...coordinator.group.policy import MigrationPolicy
from ...runtime.host_names import host_problem
from ...runtime.listeners import ListenerError
from ...runtime.tls import TlsFiles
from .node_listeners import (
    ADVERTISED,
    CONTROLLERS,
    GRPC,
    INTER_BROKER,
    LISTENERS,
    LISTENERS_DEFAULT,
    METRICS,
    PROTOCOLS,
    PROTOCOLS_DEFAULT,
    NodeListeners,
    node_listeners,
)

ENVIRONMENT_PREFIX: Final = "TIDEGATE_"
# Variables with our prefix that are not settings.
ENVIRONMENT_OTHER: Final = frozenset({"TIDEGATE_FAULT_POINTS", "TIDEGATE_BOOTSTRAP"})
ROLES: Final = ("broker", "controller")
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SELECTORS: Final = (RACK_AWARE_SELECTOR, "org.apache.kafka.common.replica.LeaderSelector")
QUORUM_TLS: Final = ("quorum.tls.certificate", "quorum.tls.key", "quorum.tls.authority")


class ConfigurationError(Exception):
    """The configuration cannot be used; the message says which key, which value and what to do, in one
    line."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `kind` is int | float | bool | str | list, `minimum`/`maximum` bound numbers
    (inclusive)."""

    kind: type
    default: Any
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    required: bool = False

    @property
    def shown_default(self) -> str:
        """For people."""
        if self.required:
            return "(required)"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, list):
            return ", ".join(self.default)
        return "" if self.default is None else str(self.default)


def _int(default: int, doc: str, minimum: int = 0, maximum: int = 2**63 - 1) -> Setting:
    return Setting(int, default, doc, minimum, maximum)


SETTINGS: Final[dict[str, Setting]] = {
    "node.id": Setting(
        int,
        None,
        "This node's number, unique in the cluster; no two processes may ever run with it.",
        0,
        2**31 - 1,
        required=True,
    ),
    "node.id.from.hostname": Setting(
        bool, False, "Take the node id from the number at the end of the host name (StatefulSet)."
    ),
    "cluster.id": Setting(
        str,
        None,
        "The cluster's name, the same on all nodes; a data folder of another cluster is refused.",
        required=True,
    ),
    "process.roles": Setting(list, ["broker", "controller"], "broker, controller or both."),
    "log.dirs": Setting(
        list,
        None,
        "Folders of the partitions' data, one a disk; the first has the metadata quorum's too.",
        required=True,
    ),
    "metadata.reserve.bytes": _int(
        8 << 20, "Kept back in each data folder, so that a full disk stops only clients; 0: none."
    ),
    "broker.rack": Setting(str, None, "Replicas of a partition are spread over racks."),
    "replica.selector.class": Setting(
        str,
        RACK_AWARE_SELECTOR,
        "The replica that a consumer reads from: an in-sync one of the consumer's rack, or (LeaderSelector) "
        "the leader.",
    ),
    LISTENERS: Setting(
        list,
        list(LISTENERS_DEFAULT),
        "All that this node listens on, each as NAME://host:port; without a host: on every interface.",
    ),
    ADVERTISED: Setting(
        list,
        None,
        "Where clients, brokers and Spark reach this node, each as NAME://host:port; default: as listeners.",
    ),
    PROTOCOLS: Setting(
        list,
        list(PROTOCOLS_DEFAULT),
        "Each listener's security protocol as NAME:PROTOCOL; only PLAINTEXT is served. Where this is not "
        "written down, the listeners for controllers, gRPC and metrics are PLAINTEXT, too.",
    ),
    INTER_BROKER: Setting(str, "PLAINTEXT", "The listener on which the brokers reach each other."),
    CONTROLLERS: Setting(
        list, ["CONTROLLER"], "The listeners of the metadata quorum; a controller has one of them."
    ),
    GRPC: Setting(
        str, "GRPC", "The listener of the gRPC services: data (Spark), controller, administration."
    ),
    METRICS: Setting(str, "METRICS", "The listener of /metrics, /livez and /readyz."),
    "quorum.tls.certificate": Setting(
        str, "", "PEM file: this controller's certificate, with a DNS name node-<node.id>."
    ),
    "quorum.tls.key": Setting(str, "", "PEM file: its key, not encrypted."),
    "quorum.tls.authority": Setting(
        str,
        "",
        "PEM file: the authority that signs the controllers' certificates. With all three: mutual TLS.",
    ),
    "controller.quorum.voters": Setting(
        list, None, "All controllers, each as id@host:quorum-port:grpc-port.", required=True
    ),
    "controller.quorum.election.timeout.ms": _int(
        500, "A follower starts an election after this long (up to twice) without a leader.", 50
    ),
    "broker.session.timeout.ms": _int(
        6000, "A broker that is silent for this long is fenced and its leaderships move.", 500
    ),
    "broker.heartbeat.interval.ms": _int(1000, "How often a broker tells the controller that it lives.", 50),
    "auto.leader.rebalance.enable": Setting(
        bool, True, "Leaderships return to the first replica of a partition by themselves."
    ),
    "leader.imbalance.check.interval.seconds": _int(
        30, "How often the controller looks for leaderships to return.", 1
    ),
    "leader.imbalance.per.broker.percentage": _int(
        10, "Of a broker's leaderships, so many may be elsewhere.", 0, 100
    ),
    "controlled.shutdown.timeout.ms": _int(
        20000, "How long a stop by SIGTERM waits for leaderships to move away."
    ),
    "replica.lag.time.max.ms": _int(
        10000, "A follower that was not caught up for this long leaves the in-sync replicas.", 100
    ),
    "replica.fetch.wait.max.ms": _int(
        500, "How long a leader holds a follower's fetch when there is nothing new.", 1
    ),
    "replica.fetch.response.max.bytes": _int(
        10 << 20, "Most bytes in one follower fetch, over all partitions.", 1024
    ),
    "replica.catch.up.max.bytes.per.second": _int(
        0, "Most sent to replicas outside the ISR; 0: no limit. Changes at run time."
    ),
    "default.replication.factor": _int(
        3, "Replicas of a topic that is created without saying how many.", 1, 32767
    ),
    "num.partitions": _int(1, "Partitions of a topic that is created without saying how many.", 1, 10000),
    "min.insync.replicas": _int(
        1, "acks=all needs so many in-sync replicas; the cluster's from its first start on.", 1, 32767
    ),
    "auto.create.topics.enable": Setting(bool, False, "Create a topic when a client first asks for it."),
    "socket.request.max.bytes": _int(
        100 << 20, "The largest request; a longer one closes the connection.", 1024, 1 << 30
    ),
    "queued.max.request.bytes": _int(
        256 << 20, "Bytes of requests in work on all connections; above, reading pauses.", 1 << 20
    ),
    "max.connections": _int(10000, "Connections of all Kafka listeners; one more is closed at once.", 1),
    "max.connections.per.ip": _int(
        2**31 - 1, "Connections of all Kafka listeners from one address.", 1, 2**31 - 1
    ),
    "connections.max.idle.ms": _int(
        600000, "A connection on which nothing moves for so long, and nothing is due, is closed.", 1
    ),
    "fetch.max.bytes": _int(
        55 << 20, "Most bytes in one fetch response, whatever the client asks.", 1024, 1 << 30
    ),
    "max.request.partition.size.limit": _int(
        2000, "Partitions in one answer of DescribeTopicPartitions.", 1, 20000
    ),
    "max.incremental.fetch.session.cache.slots": _int(
        1000, "Clients with a fetch session; more are answered without one.", 0
    ),
    "client.metrics.always.announced": Setting(
        bool,
        False,
        "Announce client metrics (KIP-714) also while there is no subscription: for clients that run "
        "already then.",
    ),
    "transaction.state.log.num.partitions": _int(
        16, "Partitions of __transaction_state. Never change it.", 1, 10000
    ),
    "transaction.state.log.replication.factor": _int(3, "Replicas of __transaction_state.", 1, 32767),
    "transaction.state.log.min.isr": _int(2, "min.insync.replicas of __transaction_state.", 1, 32767),
    "transaction.max.timeout.ms": _int(
        900000, "The longest transaction timeout that a producer may ask for.", 1
    ),
    "transaction.max.producer.epoch": _int(
        32767, "Then comes another producer id. Less only in tests, on new data.", 3, 32767
    ),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": _int(
        1000, "How often open transactions are checked.", 10
    ),
    "transactional.id.expiration.ms": _int(
        604800000, "A transactional id that is idle for this long is forgotten.", 1
    ),
    "producer.id.expiration.ms": _int(
        86400000, "A producer id that is idle for this long is forgotten by a partition.", 1
    ),
    "offsets.topic.num.partitions": _int(16, "Partitions of __consumer_offsets. Never change it.", 1, 10000),
    "offsets.topic.replication.factor": _int(3, "Replicas of __consumer_offsets.", 1, 32767),
    "offsets.topic.min.isr": _int(2, "min.insync.replicas of __consumer_offsets.", 1, 32767),
    "offsets.retention.minutes": _int(
        10080, "Offsets that no member of their group reads are kept this long.", 1
    ),
    "offset.metadata.max.bytes": _int(4096, "The longest metadata string of a committed offset."),
    "group.initial.rebalance.delay.ms": _int(
        3000, "How long the first rebalance of a group waits for more members."
    ),
    "group.min.session.timeout.ms": _int(6000, "The shortest session timeout that a member may ask for.", 1),
    "group.max.session.timeout.ms": _int(
        1800000, "The longest session timeout that a member may ask for.", 1
    ),
    "group.max.size": _int(2**31 - 1, "Most members of one group.", 1),
    "group.consumer.session.timeout.ms": _int(
        45000, "A consumer group's member (KIP-848) that is silent so long is removed.", 1
    ),
    "group.consumer.heartbeat.interval.ms": _int(
        5000, "How often a consumer group's members are to say that they live.", 1
    ),
    "group.consumer.min.session.timeout.ms": _int(
        45000, "The least that a group's consumer.session.timeout.ms may be.", 1
    ),
    "group.consumer.max.session.timeout.ms": _int(
        60000, "The most that a group's consumer.session.timeout.ms may be.", 1
    ),
    "group.consumer.min.heartbeat.interval.ms": _int(
        5000, "The least that a group's consumer.heartbeat.interval.ms may be.", 1
    ),
    "group.consumer.max.heartbeat.interval.ms": _int(
        15000, "The most that a group's consumer.heartbeat.interval.ms may be.", 1
    ),
    "group.consumer.max.size": _int(2**31 - 1, "Most members of one consumer group.", 1),
    "group.consumer.assignors": Setting(
        list, ["uniform", "range"], "The assignors; the first is for groups whose members name none."
    ),
    "group.consumer.migration.policy": Setting(
        str,
        "bidirectional",
        "Which ways a group with members may move between the protocols: bidirectional, upgrade, "
        "downgrade or disabled.",
    ),
    "group.consumer.assignment.interval.ms": _int(
        1000, "Members of a consumer group that join within it are assigned together."
    ),
    "log.retention.check.interval.ms": _int(
        300000, "How often segments are looked at that may be too old or too many.", 10
    ),
    "log.damaged.retention.ms": _int(
        604800000, "How long a damaged log is kept that was set aside; -1: for ever.", -1
    ),
    "log.damaged.retention.bytes": _int(
        10 << 30, "How much of them is kept in a data folder, besides the newest; -1: all.", -1
    ),
    "log.cleaner.enable": Setting(
        bool, True, "Clean compacted topics; the state topics grow for ever without it."
    ),
    "log.cleaner.backoff.ms": _int(15000, "How long the cleaner waits when there is nothing to clean.", 10),
    "log.cleaner.dedupe.buffer.size": _int(
        128 << 20, "Most memory of the cleaner's key map, 24 bytes a slot.", 1024
    ),
    "log.cleaner.io.max.bytes.per.second": _int(
        32 << 20, "The cleaner's reads and writes; 0: no limit. Changes at run time."
    ),
    "num.recovery.threads.per.data.dir": _int(
        2, "Logs of a folder opened at the same time; 1: closed one by one, too.", 1, 256
    ),
    "log.open.files.max": _int(
        4096, "Open files of segments in one data folder; those with unflushed data come on top.", 16
    ),
    "log.flush.threads": _int(4, "Threads that flush the logs' files.", 1, 256),
    "debug.validate": Setting(
        bool,
        False,
        "Checks the invariants of voter, logs, leaders and shards; a defect stops the node, or the shard.",
    ),
    "log.level": Setting(str, "INFO", "DEBUG, INFO, WARNING or ERROR."),
    "log.format": Setting(str, "text", "text or json."),
}

# The names of former versions, and what stands in their place.
FORMER_SETTINGS: Final[Mapping[str, str]] = {
    "advertised.grpc": f'{ADVERTISED} = ["PLAINTEXT://host:port", "GRPC://host:port"]',
    "advertised.kafka": f'{ADVERTISED} = ["PLAINTEXT://host:port", "GRPC://host:port"]',
    "data.dirs": "log.dirs",
    "fetch.from.closest.replica": f"replica.selector.class ({' or '.join(SELECTORS)})",
    "listeners.grpc": f'{LISTENERS} with "GRPC://host:port"',
    "listeners.kafka": f'{LISTENERS} with "PLAINTEXT://host:port"',
    "listeners.metrics": f'{LISTENERS} with "METRICS://host:port"',
    "listeners.quorum": f'{LISTENERS} with "CONTROLLER://host:port"',
    "quorum.election.timeout.ms": "controller.quorum.election.timeout.ms",
    "quorum.voters": "controller.quorum.voters",
    "rack": "broker.rack",
    "replica.fetch.max.bytes": "replica.fetch.response.max.bytes",
    "roles": "process.roles",
}


@dataclass(frozen=True, slots=True)
class Address:
    """host and port; an IPv6 host is written in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Voter:
    """One member of the metadata quorum."""

    node_id: int
    quorum: Address
    grpc: Address


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of one node, checked.  `values` holds every key of SETTINGS, `given` are those that were
    written down."""

    values: Mapping[str, Any]
    node_id: int
    voters: tuple[Voter, ...]
    data_dirs: tuple[Path, ...]
    listeners: NodeListeners
    quorum_tls: TlsFiles | None = None  # None: plain text between controllers
    given: frozenset[str] = frozenset()

    def integer(self, key: str) -> int:
        value = self.values[key]
        assert isinstance(value, int), key
        return value

    def text(self, key: str) -> str:
        """Empty without a value."""
        value = self.values[key]
        return "" if value is None else str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self.values[key])

    def flag(self, key: str) -> bool:
        return bool(self.values[key])

    def seconds(self, key: str) -> float:
        """A setting in milliseconds, as seconds."""
        return self.integer(key) / 1000

    def group_limits(self) -> GroupLimits:
        """Between what the settings of single groups may lie; Kafka's defaults for the kinds of groups that
        are not served."""
        ours = {
            CONSUMER_SESSION: (
                "group.consumer.min.session.timeout.ms",
                "group.consumer.max.session.timeout.ms",
            ),
            CONSUMER_HEARTBEAT: (
                "group.consumer.min.heartbeat.interval.ms",
                "group.consumer.max.heartbeat.interval.ms",
            ),
        }
        return {
            **GROUP_LIMITS,
            **{name: (self.integer(low), self.integer(high)) for name, (low, high) in ours.items()},
        }

    @property
    def reads_from_closest_replica(self) -> bool:
        return bool(self.values["replica.selector.class"] == RACK_AWARE_SELECTOR)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.values["process.roles"]

    @property
    def is_controller(self) -> bool:
        return "controller" in self.values["process.roles"]


def load(
    file: bytes | None,
    *,
    environment: Mapping[str, str],
    overrides: Sequence[str] = (),
    hostname: str = "localhost",
) -> Configuration:
    """Puts a configuration together.  `file` is the TOML text, `overrides` are `key=value`.  Raises
    ConfigurationError."""
    given: dict[str, Any] = {}
    for key, value in _read_toml(file).items():
        given[_known(key, "the configuration file")] = value
    for name, text in environment.items():
        if name.startswith(ENVIRONMENT_PREFIX) and name not in ENVIRONMENT_OTHER:
            key = _known(
                name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."), f"the environment ({name})"
            )
            given[key] = _from_text(key, text)
    for item in overrides:
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {item}: write it as key=value")
        key = _known(key.strip(), "--set")
        given[key] = _from_text(key, text.strip())
    values = {key: _checked(key, given.get(key, setting.default)) for key, setting in SETTINGS.items()}
    return _resolve(values, frozenset(given), hostname)


def _read_toml(file: bytes | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        parsed = tomllib.loads(file.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the configuration file is not TOML: {error}") from error
    flat: dict[str, Any] = {}

    def flatten(prefix: str, table: Mapping[str, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                flatten(f"{prefix}{key}.", value)
            else:
                flat[prefix + key] = value

    flatten("", parsed)
    return flat


def _known(key: str, where: str) -> str:
    if key in SETTINGS:
        return key
    if key in FORMER_SETTINGS:
        raise ConfigurationError(
            f"{key!r} in {where} is a former setting's name: write {FORMER_SETTINGS[key]} instead"
        )
    near = difflib.get_close_matches(key, SETTINGS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "`tidegate-node --settings` lists them all"
    raise ConfigurationError(f"unknown setting {key!r} in {where}: {hint}")


def _from_text(key: str, text: str) -> Any:
    kind = SETTINGS[key].kind
    if kind is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigurationError(f"{key} = {text!r}: write true or false")
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(f"{key} = {text!r}: a whole number is needed") from None
    return text


def _checked(key: str, value: Any) -> Any:
    setting = SETTINGS[key]
    if value is None:
        return None
    if not isinstance(value, setting.kind) or (setting.kind is int and isinstance(value, bool)):
        raise ConfigurationError(
            f"{key} = {value!r}: {setting.kind.__name__} is needed, this is {type(value).__name__}"
        )
    low, high = setting.minimum, setting.maximum
    if isinstance(value, int) and low is not None and high is not None and not low <= value <= high:
        raise ConfigurationError(f"{key} = {value}: must lie between {low} and {high}")
    return value


def _resolve(values: dict[str, Any], given: frozenset[str], hostname: str) -> Configuration:
    if values["node.id.from.hostname"] and values["node.id"] is None:
        number = re.search(r"(\d+)$", hostname)
        if number is None:
            raise ConfigurationError(
                f"node.id.from.hostname: the host name {hostname!r} does not end in a number"
            )
        values["node.id"] = int(number.group(1))
    if values["node.id"] is None:
        raise ConfigurationError("node.id is missing: give every node of the cluster its own number")
    node_id: int = values["node.id"]

    def filled(key: str, text: str) -> str:
        try:
            return text.replace("{node.id}", str(node_id)).replace("{hostname}", hostname)
        except AttributeError:
            raise ConfigurationError(f"{key}: text is needed, not {text!r}") from None

    if not values["cluster.id"]:
        raise ConfigurationError(
            "cluster.id is missing: choose a name for the cluster, the same on all of its nodes"
        )
    if not values["log.dirs"]:
        raise ConfigurationError("log.dirs is missing: name at least one folder for the data")
    if len(set(values["log.dirs"])) < len(values["log.dirs"]):
        raise ConfigurationError(f"log.dirs names a folder twice: {', '.join(values['log.dirs'])}")
    roles = values["process.roles"]
    if not roles or any(role not in ROLES for role in roles):
        raise ConfigurationError(f"process.roles = {roles!r}: choose from {', '.join(ROLES)}")
    if not values["controller.quorum.voters"]:
        raise ConfigurationError(
            "controller.quorum.voters is missing: name all controllers as id@host:quorum-port:grpc-port"
        )
    for key in ("log.dirs", "controller.quorum.voters", LISTENERS, ADVERTISED):
        if values[key] is not None:
            values[key] = [filled(key, text) for text in values[key]]
    voters = tuple(_voter(text) for text in values["controller.quorum.voters"])
    ids = [voter.node_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise ConfigurationError(f"controller.quorum.voters names a node twice: {ids}")
    if len(ids) not in (1, 3, 5):
        raise ConfigurationError(
            f"controller.quorum.voters names {len(ids)} controllers: 1, 3 or 5 make a quorum, other nodes "
            "are brokers only"
        )
    if "controller" in values["process.roles"] and node_id not in ids:
        raise ConfigurationError(
            f"this node ({node_id}) has the role controller but is not among controller.quorum.voters {ids}"
        )
    missing = [key for key in QUORUM_TLS if not values[key]]
    if missing and len(missing) < len(QUORUM_TLS):
        raise ConfigurationError(
            f"mutual TLS of the quorum needs all of {', '.join(QUORUM_TLS)}; missing: {', '.join(missing)}"
        )
    if values["broker.heartbeat.interval.ms"] * 2 > values["broker.session.timeout.ms"]:
        raise ConfigurationError(
            "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms"
        )
    _check_consumer_groups(values)
    if values["replica.selector.class"] not in SELECTORS:
        selector = values["replica.selector.class"]
        raise ConfigurationError(f"replica.selector.class = {selector!r}: choose from {', '.join(SELECTORS)}")
    if values["log.format"] not in ("text", "json"):
        raise ConfigurationError(f"log.format = {values['log.format']!r}: text or json")
    if values["log.level"].upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigurationError(f"log.level = {values['log.level']!r}: DEBUG, INFO, WARNING or ERROR")
    return Configuration(
        values=values,
        node_id=node_id,
        voters=voters,
        data_dirs=tuple(Path(folder) for folder in values["log.dirs"]),
        listeners=_listeners(values, given),
        quorum_tls=None if missing else TlsFiles(*(Path(filled(key, values[key])) for key in QUORUM_TLS)),
        given=given,
    )


def _check_consumer_groups(values: Mapping[str, Any]) -> None:
    policies = [policy.value for policy in MigrationPolicy]
    if values["group.consumer.migration.policy"].lower() not in policies:
        policy = values["group.consumer.migration.policy"]
        raise ConfigurationError(
            f"group.consumer.migration.policy = {policy!r}: choose from {', '.join(policies)}"
        )
    assignors = values["group.consumer.assignors"]
    if not assignors or any(not isinstance(name, str) or name not in ASSIGNORS for name in assignors):
        raise ConfigurationError(
            f"group.consumer.assignors = {assignors!r}: choose from {', '.join(sorted(ASSIGNORS))}"
        )
    if values["group.consumer.heartbeat.interval.ms"] * 2 > values["group.consumer.session.timeout.ms"]:
        message = (
            "group.consumer.session.timeout.ms must be at least twice group.consumer.heartbeat.interval.ms"
        )
        raise ConfigurationError(message)
    for rest in ("heartbeat.interval.ms", "session.timeout.ms"):
        least, most = f"group.consumer.min.{rest}", f"group.consumer.max.{rest}"
        if values[most] < values[least]:
            raise ConfigurationError(f"{most} must be greater than or equal to {least}")


def _listeners(values: dict[str, Any], given: frozenset[str]) -> NodeListeners:
    """Also puts the listeners that the node has by default for its roles in the place of the setting's."""
    roles = values["process.roles"]
    try:
        found = node_listeners(
            values, given=given, is_broker="broker" in roles, is_controller="controller" in roles
        )
    except ListenerError as error:
        raise ConfigurationError(str(error)) from error
    if LISTENERS not in given:
        values[LISTENERS] = [str(listener) for listener in found.all]
    return found


def _voter(text: str) -> Voter:
    found = re.fullmatch(r"(\d+)@(.+):(\d+):(\d+)", text.strip())
    if found is None:
        raise ConfigurationError(
            f"controller.quorum.voters: {text!r} is not of the form id@host:quorum-port:grpc-port"
        )
    host = found.group(2).strip("[]")
    _check_host(host, "controller.quorum.voters", text)
    return Voter(int(found.group(1)), Address(host, int(found.group(3))), Address(host, int(found.group(4))))


def _check_host(host: str, key: str, text: str) -> None:
    problem = host_problem(host)
    if problem is not None:
        raise ConfigurationError(f"{key} = {text!r}: {problem}")
