"""Which listener of a node serves what.

All sockets of a node stand in one list, `listeners`, under names.  A name's role comes from these settings;
a listener that none of them names speaks the Kafka protocol:

| setting | what its listener speaks | who has it |
|---|---|---|
| `controller.listener.names` | the frames of the metadata quorum (Raft) | controllers, exactly one |
| `grpc.listener.name` | gRPC: data (Spark), administration | every node |
| `controller.grpc.listener.name` | gRPC: the controller's service; by default the one above | controllers |
| `metrics.listener.name` | HTTP(S): /metrics, /livez, /readyz | every node |
| (none) | Kafka: one of them (`inter.broker.listener.name`) for the other brokers | brokers |

The brokers register the advertised address of every Kafka listener, and a client is answered with the
addresses of the listener on which its request came (`BrokerState.endpoint`).

Kafka listeners have any security protocol, gRPC's any but SASL_PLAINTEXT; those for nodes
(`inter.broker.listener.name`, the quorum's, the controller's gRPC service) are SSL, with certificates on both
sides, or PLAINTEXT; that of the metrics is SSL or PLAINTEXT.

Sentences are Kafka's where Kafka has one (`tests/node/test_node_listeners.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...runtime.connections.listeners import (
    WILDCARDS,
    Listener,
    ListenerError,
    SecurityProtocol,
    is_loopback,
    normalised,
    parse_listener,
    parse_listeners,
    parse_security_protocols,
)
from .definitions import (
    ADVERTISED,
    CONTROLLER_GRPC,
    CONTROLLERS,
    GRPC,
    INTER_BROKER,
    LISTENERS,
    METRICS,
    PROTOCOLS,
)

BETWEEN_NODES: Final = (SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeListeners:
    """The listeners of one node by what they serve."""

    kafka: tuple[Listener, ...]
    """Of a broker, at least one; a node that is only a controller has none."""
    grpc: Listener
    controller: Listener | None
    """None on a node that is only a broker."""
    controller_grpc: Listener
    """Of the controller's gRPC service: `grpc`, or one of its own.  On a node that is only a broker, which
    has no such socket, its name and its security protocol are those of the controllers."""
    metrics: Listener
    advertised: tuple[Listener, ...]
    """Where clients reach the Kafka listeners; one that is not advertised serves, and is never answered."""
    advertised_grpc: Listener
    inter_broker: Listener | None
    """Of `advertised`, the one that the other brokers use; None without the role of a broker."""

    @property
    def all(self) -> tuple[Listener, ...]:
        controller = () if self.controller is None else (self.controller,)
        return (*self.kafka, self.grpc, *self.own_controller_grpc, *controller, self.metrics)

    @property
    def own_controller_grpc(self) -> tuple[Listener, ...]:
        """The listener of the controller's gRPC service alone, if there is one here."""
        return () if self.controller is None or self.controller_grpc == self.grpc else (self.controller_grpc,)

    @property
    def for_nodes(self) -> tuple[Listener, ...]:
        """Those on which other nodes speak to this one."""
        brokers = () if self.inter_broker is None else (self.inter_broker.name,)
        controller = () if self.controller is None else (self.controller, self.controller_grpc)
        return (*(each for each in self.kafka if each.name in brokers), *controller)

    @property
    def open_to_others(self) -> tuple[Listener, ...]:
        """Of `for_nodes`, those that other machines reach without a certificate."""
        return tuple(
            each
            for each in self.for_nodes
            if each.security_protocol is SecurityProtocol.PLAINTEXT and not is_loopback(each.host)
        )


def node_listeners(
    values: Mapping[str, Any], *, given: frozenset[str], is_broker: bool, is_controller: bool
) -> NodeListeners:
    """`values`: the settings' texts; `given`: the keys that are written down.  Raises ListenerError."""
    controllers = [normalised(name) for name in values[CONTROLLERS]]
    grpc, metrics = normalised(values[GRPC]), normalised(values[METRICS])
    controller_grpc = grpc if values[CONTROLLER_GRPC] is None else normalised(values[CONTROLLER_GRPC])
    roles = {**dict.fromkeys(controllers, CONTROLLERS), metrics: METRICS, controller_grpc: CONTROLLER_GRPC}
    roles[grpc] = GRPC
    if len(roles) < len(controllers) + 2 + (controller_grpc != grpc):
        raise ListenerError(
            f"{CONTROLLERS}, {GRPC}, {CONTROLLER_GRPC} and {METRICS} must name different listeners"
        )
    entries = values[LISTENERS]
    if LISTENERS not in given:  # the default, without what the node's roles do not have
        absent: set[str | None] = set()
        if not is_broker:
            absent.add(None)
        if not is_controller:
            absent |= {CONTROLLERS, CONTROLLER_GRPC}
        entries = [entry for entry in entries if roles.get(parse_listener(entry).name) not in absent]
    protocols = _protocols(values, entries, roles, given)
    all_of_them = parse_listeners(entries, protocols, distinct_ports=True)
    by_role: dict[str | None, list[Listener]] = {}
    for listener in all_of_them:
        by_role.setdefault(roles.get(listener.name), []).append(listener)
    kafka = by_role.get(None, [])
    _check_roles(by_role, is_broker=is_broker, is_controller=is_controller)
    advertised_entries = values[ADVERTISED] if values[ADVERTISED] is not None else entries
    advertised = [
        listener
        for listener in parse_listeners(advertised_entries, protocols, distinct_ports=False)
        if roles.get(listener.name) in (None, GRPC)
    ]
    _check_advertised(advertised, all_of_them)
    to_clients = tuple(listener for listener in advertised if listener.name != grpc)
    advertised_grpc = next((listener for listener in advertised if listener.name == grpc), None)
    if advertised_grpc is None:
        raise ListenerError(
            f"{ADVERTISED} must name the listener {grpc} ({GRPC}), too: Spark reaches this node there"
        )
    found = NodeListeners(
        kafka=tuple(kafka),
        grpc=by_role[GRPC][0],
        controller=by_role[CONTROLLERS][0] if is_controller else None,
        controller_grpc=_controller_grpc(controller_grpc, by_role, protocols, is_controller=is_controller),
        metrics=by_role[METRICS][0],
        advertised=to_clients,
        advertised_grpc=advertised_grpc,
        inter_broker=_inter_broker(values, protocols, to_clients) if is_broker else None,
    )
    _check_protocols(found)
    return found


def _protocols(
    values: Mapping[str, Any], entries: Sequence[str], roles: Mapping[str, str], given: frozenset[str]
) -> dict[str, SecurityProtocol]:
    """The map; without one of its own, a node's listeners that are not for clients are PLAINTEXT as long as
    no listener's name says otherwise."""
    protocols = parse_security_protocols(values[PROTOCOLS], PROTOCOLS)
    if PROTOCOLS in given:
        return protocols
    names = {parse_listener(entry.strip()).name for entry in entries if entry.strip()} | roles.keys()
    if any(protocols.get(name, SecurityProtocol.PLAINTEXT) != SecurityProtocol.PLAINTEXT for name in names):
        return protocols
    return protocols | dict.fromkeys(roles, SecurityProtocol.PLAINTEXT)


def _check_roles(
    by_role: Mapping[str | None, Sequence[Listener]], *, is_broker: bool, is_controller: bool
) -> None:
    of_controller = by_role.get(CONTROLLERS, ())
    if is_controller and not of_controller:
        raise ListenerError(
            f"{CONTROLLERS} must contain at least one value appearing in the '{LISTENERS}' configuration "
            "when running the KRaft controller role"
        )
    if len(of_controller) > 1:
        raise ListenerError(
            f"the metadata quorum has one listener: {CONTROLLERS} names {_names(of_controller)}"
        )
    if of_controller and not is_controller:
        raise ListenerError(
            f"{CONTROLLERS} must not contain a value appearing in the '{LISTENERS}' configuration when "
            "running KRaft with just the broker role"
        )
    if by_role.get(CONTROLLER_GRPC) and not is_controller:
        raise ListenerError(
            f"{LISTENERS} must not contain the listener of {CONTROLLER_GRPC} on a node that is only a broker"
        )
    for setting in (GRPC, METRICS):
        if not by_role.get(setting):
            raise ListenerError(
                f"{LISTENERS} has none with the name that {setting} says: add it as NAME://host:port"
            )
    kafka = by_role.get(None, ())
    if kafka and not is_broker:
        raise ListenerError(
            f"The {LISTENERS} config must only contain listeners of {CONTROLLERS}, {GRPC} and {METRICS} when "
            f"process.roles=controller: {_names(kafka)} is for clients of a broker"
        )


def _controller_grpc(
    name: str,
    by_role: Mapping[str | None, Sequence[Listener]],
    protocols: Mapping[str, SecurityProtocol],
    *,
    is_controller: bool,
) -> Listener:
    found = next((each for listeners in by_role.values() for each in listeners if each.name == name), None)
    if found is not None:
        return found
    if is_controller:
        raise ListenerError(
            f"{LISTENERS} has none with the name that {CONTROLLER_GRPC} says: add it as NAME://host:port"
        )
    if name not in protocols:
        raise ListenerError(f"No security protocol defined for listener {name}")
    return Listener(name, "", 0, protocols[name])


def _check_protocols(found: NodeListeners) -> None:
    if found.grpc.security_protocol is SecurityProtocol.SASL_PLAINTEXT:
        raise ListenerError(
            f"listener {found.grpc.name} has the security protocol SASL_PLAINTEXT ({PROTOCOLS}): over gRPC "
            "clients show tokens, which need TLS: PLAINTEXT, SSL or SASL_SSL"
        )
    for listener in (*found.for_nodes, found.controller_grpc):
        if listener.security_protocol not in BETWEEN_NODES:
            own = f", or name another one in {CONTROLLER_GRPC}" if listener == found.grpc else ""
            raise ListenerError(
                f"listener {listener.name} has the security protocol {listener.security_protocol.name} "
                f"({PROTOCOLS}): nodes prove to each other who they are by certificates, so it is SSL or "
                f"PLAINTEXT{own}"
            )
    if found.metrics.security_protocol not in (SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL):
        raise ListenerError(
            f"listener {found.metrics.name} has the security protocol {found.metrics.security_protocol.name} "
            f"({PROTOCOLS}): HTTP knows no SASL, so it is SSL or PLAINTEXT"
        )


def _check_advertised(advertised: Sequence[Listener], listeners: Sequence[Listener]) -> None:
    own = [listener.name for listener in listeners]
    if any(listener.name not in own for listener in advertised):
        raise ListenerError(
            f"{ADVERTISED} listener names must be equal to or a subset of the ones defined in {LISTENERS}. "
            f"Found {_names(advertised)}. The valid options based on the current configuration are "
            f"{','.join(own)}"
        )
    for listener in advertised:
        if not listener.host:
            raise ListenerError(
                f"{ADVERTISED} must name a host for the listener {listener.name}: without one it means every "
                "interface of this machine, and clients need one address to connect to"
            )
        if listener.host in WILDCARDS:
            raise ListenerError(
                f"{ADVERTISED} cannot use the nonroutable meta-address {listener.host}. Use a routable IP "
                "address."
            )


def _inter_broker(
    values: Mapping[str, Any], protocols: Mapping[str, SecurityProtocol], advertised: Sequence[Listener]
) -> Listener:
    if not advertised:
        raise ListenerError(
            "There must be at least one broker advertised listener. Perhaps all listeners appear in "
            f"{CONTROLLERS}?"
        )
    name = normalised(values[INTER_BROKER])
    if name not in protocols:
        raise ListenerError(f"Listener with name {name} defined in {INTER_BROKER} not found in {PROTOCOLS}.")
    found = next((listener for listener in advertised if listener.name == name), None)
    if found is None:
        raise ListenerError(
            f"{INTER_BROKER} must be a listener name defined in {ADVERTISED}. The valid options based on "
            f"currently configured listeners are {_names(advertised)}"
        )
    return found


def _names(listeners: Sequence[Listener]) -> str:
    return ",".join(listener.name for listener in listeners)
