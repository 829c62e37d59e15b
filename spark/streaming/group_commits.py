"""Commits the offsets of finished micro-batches to a consumer group, so that tools which show the lag of
groups see the stream.

A thread of its own commits, the newest offsets first and only them: no trigger waits for the group's
coordinator.  The stream itself never reads these offsets; its checkpoint says where it goes on.  So a commit
that fails is logged once, and the offsets of the next micro-batch are tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol, Self

from ...runtime.connections.tls import TlsError
from ...runtime.logs import get
from ...security.client_security import ClientSecurity, SecurityError
from ...wire.errors import KafkaError
from .offsets import Key

log = get(__name__)

COMMIT_TIMEOUT_S = 10.0


class Committer(Protocol):
    """What `tidegate.client.blocking.Admin` can do, once it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def set_group_offsets(self, group_id: str, offsets: Mapping[Key, int]) -> None: ...


def kafka_committer(bootstrap: tuple[str, ...], security: ClientSecurity | None) -> Callable[[], Committer]:
    """Makes a client of Kafka's protocol; it connects when it is entered."""
    from ...client.blocking import Admin

    return lambda: Admin(
        ",".join(bootstrap), client_id="tidegate-spark", timeout_s=COMMIT_TIMEOUT_S, security=security
    )


class GroupCommits:
    """Use from one thread.  `connect` makes a client, again after each failure."""

    def __init__(self, group: str, connect: Callable[[], Committer]) -> None:
        self._group = group
        self._connect = connect
        self._client: Committer | None = None  # of its own thread
        self._changed = threading.Condition()
        self._wanted: dict[Key, int] = {}
        self._tried: dict[Key, int] = {}
        self._is_closed = False
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="group-commits", daemon=True)
        self._thread.start()

    def store(self, positions: Mapping[Key, int]) -> None:
        """The offsets to commit from now on; returns at once."""
        with self._changed:
            self._wanted = dict(positions)
            self._changed.notify_all()

    def flush(self, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Waits until the newest offsets have been tried."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._tried == self._wanted, timeout_s)

    def close(self) -> None:
        """Tries the newest offsets, and ends the thread."""
        self.flush()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(COMMIT_TIMEOUT_S)

    def _work(self) -> None:
        try:
            while (offsets := self._next()) is not None:
                self._commit(offsets)
                with self._changed:
                    self._tried = offsets
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._is_closed = True  # also by a defect: nothing waits for this thread then
                self._changed.notify_all()
            self._disconnect()

    def _next(self) -> dict[Key, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._tried != self._wanted)
            return self._wanted if self._tried != self._wanted else None

    def _commit(self, offsets: dict[Key, int]) -> None:
        try:
            if self._client is None:
                self._client = self._connect().__enter__()
            self._client.set_group_offsets(self._group, offsets)
        except (KafkaError, SecurityError, TlsError, OSError) as error:
            if not self._has_failed:
                log.warning(
                    "offsets_not_committed",
                    group=self._group,
                    reason=error,
                    advice="the next micro-batch tries again; commitBootstrap must name Kafka listeners",
                )
            self._has_failed = True
            self._disconnect()
        else:
            self._has_failed = False

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.__exit__()
