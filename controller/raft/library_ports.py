"""What stands where PySyncObj expects its own network (it sends one kind of message by itself, and has no sockets), and its kinds
of entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysyncobj.transport import Transport

from .failure import RaftFatal
from .messages import VoteRequest

if TYPE_CHECKING:
    from .replication import Outbox

REGULAR, NO_OP = b"\x00", b"\x01"  # the first byte of every entry, PySyncObj's own


class VoteRequests(Transport):  # type: ignore[misc]
    """What `SyncObj` itself still sends: the vote requests that begin an election."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(None, None, None)
        self._outbox = outbox

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        if message["type"] != "request_vote":
            raise RaftFatal(f"PySyncObj tried to send {message['type']!r}, which nothing here understands")
        request = VoteRequest(message["term"], message["last_log_index"], message["last_log_term"], preliminary=False)
        self._outbox.send(node.id, request)
        return True


class NoPoller:
    """PySyncObj polls its sockets in every tick; it has none."""

    def poll(self, timeout: float) -> None: ...
