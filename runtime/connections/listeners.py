"""Listeners as Kafka writes them: `NAME://host:port`, each name with a security protocol.

Pure: text in, values out, and errors in Kafka's own words
(`tests/runtime/connections/test_listeners.py` has what a Kafka 4.1.1 said of the same text).  Names are
compared in capitals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final

from .host_names import host_problem

PORT_MAX: Final = 65535
WILDCARDS: Final = ("", "0.0.0.0", "::")
"""The hosts that mean all interfaces of a machine."""

_LISTENER: Final = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)", re.ASCII)


class SecurityProtocol(IntEnum):
    """How a listener's clients prove who they are, and whether its bytes are encrypted; Kafka's numbers."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


class ListenerError(ValueError):
    """Text that names no listeners, or listeners that exclude each other; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of a node, or the address at which others reach it.  An empty host is every interface."""

    name: str
    host: str
    port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def normalised(name: str) -> str:
    """A listener's name in capitals, as it is compared.  Raises ListenerError for an empty one."""
    if not name:
        raise ListenerError("The provided listener name is null or empty string")
    return name.upper()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there.  Of names, `localhost` alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_listener(text: str) -> Listener:
    """One entry.  Raises ListenerError."""
    if ":" not in text:
        raise ListenerError(f"Unable to parse a listener name from {text}")
    found = _LISTENER.fullmatch(text)
    if found is None:
        raise ListenerError(f"Unable to parse {text} to a broker endpoint")
    name, host, port = normalised(found.group(1)), found.group(2), int(found.group(3))
    problem = host_problem(host)
    if problem is None and not 0 <= port <= PORT_MAX:
        problem = f"{port} is no port"
    if problem is not None:
        raise ListenerError(f"Unable to parse {text} to a broker endpoint: {problem}")
    return Listener(name, host, port)


def parse_listeners(
    entries: Sequence[str], protocols: Mapping[str, SecurityProtocol], *, distinct_ports: bool
) -> tuple[Listener, ...]:
    """All entries, each with the protocol of its name.  Names differ, and for `distinct_ports` ports do, too:
    but 0, and of an IPv4 and an IPv6 address.  Raises ListenerError."""
    parsed = [parse_listener(entry.strip()) for entry in entries if entry.strip()]
    text = ",".join(entries)
    if len({listener.name for listener in parsed}) < len(parsed):
        raise ListenerError(f"Each listener must have a different name, listeners: {text}")
    for listener in parsed:
        if listener.name not in protocols:
            raise ListenerError(f"No security protocol defined for listener {listener.name}")
    if distinct_ports and not _ports_differ(parsed):
        raise ListenerError(f"Each listener must have a different port, listeners: {text}")
    return tuple(replace(listener, security_protocol=protocols[listener.name]) for listener in parsed)


def parse_security_protocols(entries: Iterable[str], setting: str) -> dict[str, SecurityProtocol]:
    """Listener name -> protocol, from `NAME:PROTOCOL`; of two entries for a name the later holds.  Raises
    ListenerError, whose message names `setting`."""
    found: dict[str, SecurityProtocol] = {}
    for entry in entries:
        name, separator, protocol = (part.strip() for part in entry.rpartition(":"))
        if not separator:
            raise ListenerError(
                f"Error parsing configuration property '{setting}': {entry!r} is not NAME:PROTOCOL"
            )
        try:
            found[normalised(name)] = SecurityProtocol[protocol.upper()]
        except KeyError:
            raise ListenerError(f"Invalid security protocol `{protocol}` defined in {setting}") from None
    return found


def _ports_differ(listeners: Iterable[Listener]) -> bool:
    of_port: dict[int, list[Listener]] = {}
    for listener in listeners:
        of_port.setdefault(listener.port, []).append(listener)
    return all(
        port == 0 or len(same) == 1 or sorted(map(_ip_version, same)) == [4, 6]
        for port, same in of_port.items()
    )


def _ip_version(listener: Listener) -> int:
    """4 or 6 for an address, 0 for a name."""
    for version, parse in ((4, IPv4Address), (6, IPv6Address)):
        try:
            parse(listener.host)
        except AddressValueError:
            continue
        return version
    return 0
