"""Hosts that get new addresses when their nodes restart, while name lookups return the old ones for a time,
as with pods and cached DNS answers.

    with MovingHosts(3, lag_s=30) as lab:
        async with LocalCluster(directory, 3, hosts=lab) as cluster:   # nodes announce their host names
            await cluster.node(1).terminate()
            lab.move(1)                     # another address; packets to the old one are lost
            await cluster.node(1).start()   # others, and clients, look up the old one for 30 s from now on

A node looks names up in a hosts file of its own, bound over /etc/hosts in its mount namespace: it sees its
own new address at once, and those of other hosts after the lag.  In this process, the clients' lookups go
through `MovingHosts` as well.
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
        self._resolved: dict[str, str] = {}  # name: the address that lookups return
        self._files: TemporaryDirectory[str] | None = None
        self._look_up = socket.getaddrinfo

    def __enter__(self) -> Self:
        super().__enter__()
        self._files = TemporaryDirectory(prefix="tidegate-hosts-")
        self._resolved = {self.name(node_id): self.address(node_id) for node_id in self.nodes}
        self._write()
        self._look_up = socket.getaddrinfo
        socket.getaddrinfo = self._getaddrinfo
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        socket.getaddrinfo = self._look_up
        super().__exit__(kind, error, trace)
        if self._files is not None:
            self._files.cleanup()
            self._files = None

    def name(self, node_id: int) -> str:
        return f"node-{node_id}.tidegate.test"

    def command(self, node_id: int) -> Sequence[str]:
        return [
            *super().command(node_id),
            "unshare",
            "--mount",
            "--",
            "sh",
            "-c",
            BIND_HOSTS,
            str(self._file(node_id)),
        ]

    def move(self, node_id: int) -> None:
        """Gives the host another address; its own node sees it at once, all others after the lag."""
        super().move(node_id)
        self._write()
        address = self.address(node_id)
        asyncio.get_running_loop().call_later(self._lag_s, self._tell, node_id, address)

    def _tell(self, node_id: int, address: str) -> None:
        self._resolved[self.name(node_id)] = address
        self._write()

    def _file(self, node_id: int) -> Path:
        assert self._files is not None
        return Path(self._files.name) / f"hosts-{node_id}"

    def _write(self) -> None:
        """Writes in place: the mount binds the file's inode, not its name."""
        if self._files is None:
            return
        for node_id in self.nodes:
            hosts = {**self._resolved, self.name(node_id): self.address(node_id), "localhost": "127.0.0.1"}
            self._file(node_id).write_text(
                "".join(f"{address} {name}\n" for name, address in hosts.items()), encoding="ascii"
            )

    def _getaddrinfo(self, host: Any, *rest: Any, **more: Any) -> Any:
        return self._look_up(self._resolved.get(host, host), *rest, **more)
