"""Reads and checks a node's settings, with clear words for what is wrong with them.

Order of precedence, the later wins: the defaults (`definitions.py`), the TOML file (`--config`), the
environment (`TIDEGATE_` + the key in capitals with `_` for `.`: `TIDEGATE_NODE_ID=2`), the command line
(`--set key=value`).  An unknown key stops the node and names the key that was probably meant: a misspelt
`min.insync.replicas` that is silently ignored is how acknowledged data gets lost.

The strings of listeners, advertised addresses, data folders and TLS files may hold `{node.id}` and
`{hostname}`, so that one configuration serves all pods of a StatefulSet.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from ...runtime.connections.host_names import host_problem
from ...runtime.connections.listeners import Listener, ListenerError
from ...runtime.connections.tls import TlsFiles
from ...security.delegation_tokens import TokenSettings
from ...security.quotas import QuotaWindow
from .definitions import (
    ADVERTISED,
    AUTHORIZER,
    FORMER_SETTINGS,
    LISTENERS,
    RACK_AWARE_SELECTOR,
    SELECTORS,
    SETTINGS,
    Setting,
)
from .node_listeners import NodeListeners, node_listeners
from .security_settings import (
    LISTENER_PREFIX,
    MAX_CONNECTIONS,
    ListenerSecurity,
    SecuritySettingError,
    first_users,
    key_set_location,
    listener_security,
    setting_of_listener,
    super_users,
)

ENVIRONMENT_PREFIX: Final = "TIDEGATE_"
# Variables with our prefix that are not settings.
ENVIRONMENT_OTHER: Final = frozenset({"TIDEGATE_FAULT_POINTS", "TIDEGATE_BOOTSTRAP"})
ROLES: Final = ("broker", "controller")


class ConfigurationError(Exception):
    """The configuration cannot be used; the message says which key, which value and what to do, in one
    line."""


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

    values: Mapping[str, Any] = field(repr=False)
    """Some are secrets."""
    node_id: int
    voters: tuple[Voter, ...]
    data_dirs: tuple[Path, ...]
    listeners: NodeListeners
    node_tls: Mapping[str, TlsFiles] = field(default_factory=dict)
    """The files with which this node proves to others who it is, by the names of the listeners for nodes that
    are SSL."""
    listener_security: Mapping[str, ListenerSecurity] = field(default_factory=dict)
    """How each listener knows its clients, by its name: those of Kafka, gRPC and the metrics."""
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

    def grpc_connections_max(self, listener: Listener) -> int:
        """Of a gRPC listener, which is not one of those that share `max.connections`."""
        own = self.values.get(f"{LISTENER_PREFIX}{listener.name.lower()}.{MAX_CONNECTIONS}")
        return self.integer(MAX_CONNECTIONS) if own is None else int(own)

    def quota_window(self) -> QuotaWindow:
        return QuotaWindow(float(self.integer("quota.window.size.seconds")), self.integer("quota.window.num"))

    def mutation_window(self) -> QuotaWindow:
        """Of the quota for topics that are created and deleted."""
        return QuotaWindow(
            float(self.integer("controller.quota.window.size.seconds")),
            self.integer("controller.quota.window.num"),
        )

    def token_settings(self) -> TokenSettings:
        return TokenSettings(
            self.text("delegation.token.secret.key").encode(),
            self.integer("delegation.token.max.lifetime.ms"),
            self.integer("delegation.token.expiry.time.ms"),
            self.integer("delegation.token.expiry.check.interval.ms"),
        )

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
    values.update((key, _checked(key, value)) for key, value in given.items() if key not in SETTINGS)
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
    try:
        if setting_of_listener(key) is not None:
            return key
    except SecuritySettingError as error:
        raise ConfigurationError(f"{key!r} in {where}: {error}") from error
    if key in FORMER_SETTINGS:
        raise ConfigurationError(
            f"{key!r} in {where} is a former setting's name: write {FORMER_SETTINGS[key]} instead"
        )
    near = difflib.get_close_matches(key, SETTINGS, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "`tidegate-node --settings` lists them all"
    raise ConfigurationError(f"unknown setting {key!r} in {where}: {hint}")


def _setting(key: str) -> Setting:
    """Of a listener: the setting that it replaces; an unknown one (PLAIN's users) is text."""
    if key in SETTINGS:
        return SETTINGS[key]
    of_listener = setting_of_listener(key)
    assert of_listener is not None, key
    return SETTINGS.get(of_listener[1], Setting(str, None, "", secret=True))


def _from_text(key: str, text: str) -> Any:
    kind = _setting(key).kind
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
    setting = _setting(key)
    if value is None:
        return None
    if not isinstance(value, setting.kind) or (setting.kind is int and isinstance(value, bool)):
        shown = "(not shown)" if setting.secret else repr(value)
        raise ConfigurationError(
            f"{key} = {shown}: {setting.kind.__name__} is needed, this is {type(value).__name__}"
        )
    low, high = setting.minimum, setting.maximum
    if isinstance(value, int) and low is not None and high is not None and not low <= value <= high:
        raise ConfigurationError(f"{key} = {value}: must lie between {low} and {high}")
    return value


def _resolve(values: dict[str, Any], given: frozenset[str], hostname: str) -> Configuration:
    node_id = values["node.id"] = _node_id(values, hostname)
    _check_presence(values)
    _fill_in(values, node_id, hostname)
    voters = _voters(values, node_id)
    _check_choices(values)
    _check_consumer_groups(values)
    if values["broker.heartbeat.interval.ms"] * 2 > values["broker.session.timeout.ms"]:
        raise ConfigurationError(
            "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms"
        )
    listeners = _listeners(values, given)
    _check_insecure(values, listeners)
    security, node_tls = _security(values, listeners)
    return Configuration(
        values=values,
        node_id=node_id,
        voters=voters,
        data_dirs=tuple(Path(folder) for folder in values["log.dirs"]),
        listeners=listeners,
        listener_security=security,
        node_tls=node_tls,
        given=given,
    )


def _node_id(values: Mapping[str, Any], hostname: str) -> int:
    node_id: int | None = values["node.id"]
    if values["node.id.from.hostname"] and node_id is None:
        number = re.search(r"(\d+)$", hostname)
        if number is None:
            raise ConfigurationError(
                f"node.id.from.hostname: the host name {hostname!r} does not end in a number"
            )
        node_id = int(number.group(1))
    if node_id is None:
        raise ConfigurationError("node.id is missing: give every node of the cluster its own number")
    return node_id


def _check_presence(values: Mapping[str, Any]) -> None:
    if not values["cluster.id"]:
        raise ConfigurationError(
            "cluster.id is missing: choose a name for the cluster, the same on all of its nodes"
        )
    if not values["log.dirs"]:
        raise ConfigurationError("log.dirs is missing: name at least one folder for the data")
    if not values["controller.quorum.voters"]:
        raise ConfigurationError(
            "controller.quorum.voters is missing: name all controllers as id@host:quorum-port:grpc-port"
        )


def _fill_in(values: dict[str, Any], node_id: int, hostname: str) -> None:
    """Puts the node's id and host name where the values name them."""

    def filled(key: str, text: str) -> str:
        try:
            return text.replace("{node.id}", str(node_id)).replace("{hostname}", hostname)
        except AttributeError:
            raise ConfigurationError(f"{key}: text is needed, not {text!r}") from None

    for key in ("log.dirs", "controller.quorum.voters", LISTENERS, ADVERTISED):
        if values[key] is not None:
            values[key] = [filled(key, text) for text in values[key]]
    for key in values:
        if key.endswith((".keystore.location", ".key.location", ".truststore.location")):
            values[key] = filled(key, values[key])


def _voters(values: Mapping[str, Any], node_id: int) -> tuple[Voter, ...]:
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
    return voters


def _check_choices(values: Mapping[str, Any]) -> None:
    folders, roles = values["log.dirs"], values["process.roles"]
    if len(set(folders)) < len(folders):
        raise ConfigurationError(f"log.dirs names a folder twice: {', '.join(folders)}")
    if not roles or any(role not in ROLES for role in roles):
        raise ConfigurationError(f"process.roles = {roles!r}: choose from {', '.join(ROLES)}")
    if values["replica.selector.class"] not in SELECTORS:
        selector = values["replica.selector.class"]
        raise ConfigurationError(f"replica.selector.class = {selector!r}: choose from {', '.join(SELECTORS)}")
    if values["authorizer.class.name"] not in ("", AUTHORIZER):
        raise ConfigurationError(
            f"authorizer.class.name = {values['authorizer.class.name']!r}: only {AUTHORIZER} is known"
        )
    if values["log.format"] not in ("text", "json"):
        raise ConfigurationError(f"log.format = {values['log.format']!r}: text or json")
    if values["log.level"].upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigurationError(f"log.level = {values['log.level']!r}: DEBUG, INFO, WARNING or ERROR")


def _security(
    values: Mapping[str, Any], listeners: NodeListeners
) -> tuple[dict[str, ListenerSecurity], dict[str, TlsFiles]]:
    """The security of the listeners for clients, and the certificates of those for nodes, by their names."""
    try:
        security = {
            each.name: listener_security(each, values, is_for_nodes=each in listeners.for_nodes)
            for each in (*listeners.kafka, listeners.grpc, listeners.metrics)
        }
        node_tls = {
            each.name: files
            for each in (*listeners.for_nodes, listeners.controller_grpc)
            if (files := listener_security(each, values, is_for_nodes=True).tls) is not None
        }
        super_users(values["super.users"])
        first_users(values["bootstrap.scram.credentials"])
        key_set_location(values)
    except SecuritySettingError as error:
        raise ConfigurationError(str(error)) from error
    return security, node_tls


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


def _check_insecure(values: Mapping[str, Any], listeners: NodeListeners) -> None:
    """A client that reaches an open listener for nodes can speak for a node, and acknowledge, abort or lose
    what others wrote."""
    if listeners.open_to_others and not values["insecure"]:
        raise ConfigurationError(
            f"{', '.join(map(str, listeners.open_to_others))}: other machines reach this listener for nodes, "
            "and it asks for no certificate. Make it SSL (listener.security.protocol.map, "
            "ssl.keystore.location, ssl.truststore.location; docs/operations.md), or set insecure = true on "
            "a network that no other machine reaches"
        )


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
