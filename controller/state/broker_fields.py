"""The listeners and the offline replicas of a broker, as messages: in requests, in the metadata log and in
its snapshot.  Equal values give equal messages, because nodes compare what they store.

A broker names its offline replicas, which it cannot serve although it lives, in every heartbeat; for these
partitions the controller treats the broker as absent.  An offline replica may come back with its data and
stays eligible to lead; a damaged one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeVar

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...runtime.connections.host_names import host_problem
from ...runtime.connections.listeners import PORT_MAX, Listener, SecurityProtocol

LISTENERS_MAX: Final = 64
NAME_LENGTH_MAX: Final = 255

Replica = tuple[bytes, int]
"""(topic id, partition)."""


class _Group(Protocol):
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> Iterable[int]: ...


Group = TypeVar("Group")


def encode_replicas(replicas: Iterable[Replica], group: Callable[..., Group]) -> list[Group]:
    """As messages of the type `group`, in ascending order."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(replicas):
        by_topic.setdefault(topic_id, []).append(partition)
    return [group(topic_id=topic_id, partitions=partitions) for topic_id, partitions in by_topic.items()]


def decode_replicas(groups: Iterable[_Group]) -> frozenset[Replica]:
    return frozenset((bytes(group.topic_id), partition) for group in groups for partition in group.partitions)


def encode_listeners(listeners: Iterable[Listener]) -> list[pb.NamedEndpoint]:
    """In ascending order of the names."""
    return [
        pb.NamedEndpoint(
            name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
        )
        for each in sorted(listeners, key=lambda each: each.name)
    ]


def decode_listeners(endpoints: Collection[pb.NamedEndpoint]) -> tuple[Listener, ...]:
    """In ascending order of the names.  Raises ValueError for a name that is there twice, and for an unknown
    protocol."""
    found = {
        each.name: Listener(each.name, each.host, each.port, SecurityProtocol(each.security_protocol))
        for each in endpoints
    }
    if len(found) < len(endpoints):
        raise ValueError("a listener's name is there twice")
    return tuple(found[name] for name in sorted(found))


def checked_listeners(endpoints: Iterable[rpc.ListenerEndpoint]) -> list[Listener]:
    """The listeners of a broker's registration.  Raises ValueError: why clients could not use them."""
    found: dict[str, Listener] = {}
    for each in endpoints:
        problem = host_problem(each.host)
        if not each.name or len(each.name) > NAME_LENGTH_MAX or each.name in found:
            problem = "a listener needs a name of its own"
        elif len(found) == LISTENERS_MAX:
            problem = f"a broker has at most {LISTENERS_MAX} listeners"
        elif problem is None and not 0 <= each.port <= PORT_MAX:
            problem = f"{each.port} is no port"
        elif problem is None and each.security_protocol not in list(SecurityProtocol):
            problem = f"{each.security_protocol} is no security protocol"
        if problem is not None:
            raise ValueError(problem)
        found[each.name] = Listener(each.name, each.host, each.port, SecurityProtocol(each.security_protocol))
    return list(found.values())
