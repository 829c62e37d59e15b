"""The stand-ins for PySyncObj's own network: it sends one kind of message by itself, and has no sockets."""

from __future__ import annotations

from typing import Any

from pysyncobj.transport import Transport

from .contract import Outbox
from .failure import RaftFatal
from .messages import VoteRequest


class VoteRequests(Transport):  # type: ignore[misc]
    """Sends the vote requests with which `SyncObj` begins an election."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(None, None, None)
        self._outbox = outbox

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        if message["type"] != "request_vote":
            raise RaftFatal(f"PySyncObj tried to send {message['type']!r}, which nothing here understands")
        request = VoteRequest(
            message["term"], message["last_log_index"], message["last_log_term"], preliminary=False
        )
        self._outbox.send(node.id, request)
        return True


class NoPoller:
    """PySyncObj polls its sockets in every tick; it has none."""

    def poll(self, timeout: float) -> None: ...
