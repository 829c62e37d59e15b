"""Hosts whose addresses change when their nodes are restarted, while their names lag behind: what pods and cached DNS answers do.

    with MovingHosts(3, lag_s=30) as lab:
        async with LocalCluster(directory, 3, hosts=lab) as cluster:   # nodes are told to others by their names
            await cluster.node(1).terminate()
            lab.move(1)                     # another address; what is sent to the old one is lost
            await cluster.node(1).start()   # others, and clients, look up the old one for 30 s from now on

A node looks names up in a hosts file of its own, bound over /etc/hosts in its mount namespace: it knows itself at once, and the
others as everybody does.  In this process the clients' lookups go through `MovingHosts` as well.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

from .network_lab import NetworkLab

BIND_HOSTS: Final = 'mount --bind "$0" /etc/hosts && exec "$@"'


class MovingHosts(NetworkLab):
    """See the module's text."""

    def __init__(self, nodes: int, lag_s: float) -> None:
        super().__init__(nodes)
        self._lag_s = lag_s
        self._told: dict[str, str] = {}  # name: the address that lookups give
        self._files: TemporaryDirectory[str] | None = None
        self._look_up = socket.getaddrinfo

    def __enter__(self) -> Self:
        super().__enter__()
        self._files = TemporaryDirectory(prefix="tidegate-hosts-")
        self._told = {self.name(node_id): self.address(node_id) for node_id in self.nodes}
        self._write()
        self._look_up = socket.getaddrinfo
        socket.getaddrinfo = self._getaddrinfo
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        socket.getaddrinfo = self._look_up
        super().__exit__(kind, error, trace)
        if self._files is not None:
            self._files.cleanup()
            self._files = None

    def name(self, node_id: int) -> str:
        return f"node-{node_id}.tidegate.test"

    def command(self, node_id: int) -> Sequence[str]:
        return [*super().command(node_id), "unshare", "--mount", "--", "sh", "-c", BIND_HOSTS, str(self._file(node_id))]

    def move(self, node_id: int) -> None:
        """From now on the host has another address, which its own node knows, and all others after the lag."""
        super().move(node_id)
        self._write()
        address = self.address(node_id)
        asyncio.get_running_loop().call_later(self._lag_s, self._tell, node_id, address)

    def _tell(self, node_id: int, address: str) -> None:
        self._told[self.name(node_id)] = address
        self._write()

    def _file(self, node_id: int) -> Path:
        assert self._files is not None
        return Path(self._files.name) / f"hosts-{node_id}"

    def _write(self) -> None:
        """In place: the nodes see the file, not its name."""
        if self._files is None:
            return
        for node_id in self.nodes:
            told = {**self._told, self.name(node_id): self.address(node_id), "localhost": "127.0.0.1"}
            self._file(node_id).write_text("".join(f"{address} {name}\n" for name, address in told.items()), encoding="ascii")

    def _getaddrinfo(self, host: Any, *rest: Any, **more: Any) -> Any:
        return self._look_up(self._told.get(host, host), *rest, **more)
