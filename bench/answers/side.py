"""One cluster that is asked, and its answers in a form in which two clusters can be compared.

A label replaces each value that must differ: topic ids by the names that the script gave them, session and
producer ids by the order in which they were seen, ports and times by a word.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

ANSWER_TIMEOUT_S = 60
ORDERED = ("partition_responses",)
"""Lists that Kafka makes from a hash table: compared by partition."""
CLOSED = "the connection was closed"


class Connection:
    """Requests and answers, one after another."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        self._correlation_id = 0

    def send(self, key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        frame = codec.request_header(key, version, self._correlation_id, "compare") + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, key: int, version: int) -> Any:
        length = struct.unpack(">i", self._read(4))[0]
        return codec.decode_response(key, version, self._read(length))[1]

    def ask(self, key: int, version: int, asked: Mapping[str, Any]) -> Any:
        """The decoded answer.  Raises OSError."""
        self.send(key, version, codec.request(key, version, asked))
        return self.receive(key, version)

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError(CLOSED)
            data += more
        return data


@dataclass
class Side:
    """A cluster, by node, and its answers so far, by the label of each request."""

    name: str
    addresses: Mapping[int, tuple[str, int]]
    answers: dict[str, Any] = field(default_factory=dict)
    labels: dict[Any, str] = field(default_factory=dict)
    _connections: dict[int, Connection] = field(default_factory=dict)

    def ask(
        self, label: str | None, key: ApiKey, version: int, asked: Mapping[str, Any], *, node: int = 1
    ) -> Any:
        """The decoded answer, None when the connection was closed instead; kept for the comparison under
        `label`."""
        answer: Any
        try:
            connection = self._connections.get(node) or Connection(self.addresses[node])
            self._connections[node] = connection
            answer = connection.ask(key, version, asked)
        except OSError:
            broken = self._connections.pop(node, None)
            if broken is not None:
                broken.close()
            answer = None
        if label is not None:
            assert label not in self.answers, label
            self.answers[label] = CLOSED if answer is None else self.plain(answer)
        return answer

    def note(self, label: str, value: Any) -> None:
        self.answers[label] = value

    def name_as(self, value: Any, label: str) -> None:
        """From now on this value (an id) shows as `label`."""
        self.labels[value] = label

    def plain(self, value: Any, name: str = "") -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return {each.name: self.plain(getattr(value, each.name), each.name) for each in fields(value)}
        if isinstance(value, tuple | list):
            entries = [self.plain(each, name) for each in value]
            by_number = "index" if name in ORDERED else None
            return entries if by_number is None else sorted(entries, key=lambda entry: entry[by_number])
        if isinstance(value, datetime | timedelta):
            return "a time" if name != "throttle_time" else 0
        if isinstance(value, UUID):
            return self.labels.get(value, "an id")
        if name.endswith("error_code"):
            return ErrorCode.from_wire(int(value)).name
        if name == "port":
            return "a port" if value > 0 else value
        if name in ("session_id", "producer_id"):
            number = sum(1 for each in self.labels.values() if each.startswith(name))
            return (
                value
                if value < (name == "session_id")
                else self.labels.setdefault((name, value), f"{name} {number}")
            )
        if name in ("records", "cluster_id", "log_dir", "host") and value:
            return f"{len(value)} bytes" if name == "records" else f"a {name}"
        if isinstance(value, ErrorCode):
            return value.name
        if isinstance(value, str):
            for known, label in self.labels.items():
                if isinstance(known, str):
                    value = value.replace(known, label)
        return value

    def wait_until(self, met: Any, what: str) -> None:
        """Set-up only: until `met()` is true."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not met():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: not within {ANSWER_TIMEOUT_S} s: {what}")
            time.sleep(0.1)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def differences(one: Any, other: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """(path, value here, value there) of every difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in dict.fromkeys((*one, *other)):
            found += differences(
                one.get(key, "(nothing)"), other.get(key, "(nothing)"), f"{where}.{key}" if where else key
            )
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = []
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            found += differences(left, right, f"{where}[{index}]")
        return found
    return [] if one == other else [(where, one, other)]
