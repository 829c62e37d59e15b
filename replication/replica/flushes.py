"""The flushes of this node's replicas.

A leader's flush and its followers' fetches run at the same time, and each may move the high watermark.  One
flush of a log is in flight; the next one takes all records that were appended meanwhile.  Logs whose policy
asks for no flush are flushed in the background when that pays (`LocalLog.flush_due`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from ...runtime import logs
from ...storage.log.group_commit import GroupCommit
from ...wire.errors import KafkaError
from .replica import OfflineCause, Replica, Role, TakeOffline

_log = logs.get(__name__)


class ReplicaFlushes:
    """See the module's text."""

    def __init__(
        self,
        group_commit: GroupCommit,
        on_flushed: Callable[[Replica], None],
        take_offline: TakeOffline,
    ) -> None:
        self._group_commit = group_commit
        self._on_flushed = on_flushed
        self._take_offline = take_offline
        self._closing = False

    def start(self, replica: Replica) -> None:
        """Starts a flush of a leader's log when its policy or its size asks for one."""
        if replica.needs_flush:
            if not replica.flush_running and not self._closing:
                replica.flush_running = True
                self._group_commit.when_flushed(replica.log, partial(self._flushed, replica))
        elif replica.log.local.flush_due and not replica.flushes_always:
            self._group_commit.request(replica.log)

    def _flushed(self, replica: Replica, error: KafkaError | None) -> None:
        replica.flush_running = False
        if self._closing:
            return
        if error is not None:
            self._take_offline(replica, OfflineCause.DISK_FAILED, str(error))
            return
        self._on_flushed(replica)
        if replica.role is not Role.OFFLINE:
            self.start(replica)

    async def flush_followed(self, replicas: Sequence[Replica]) -> None:
        """Flushes what a follower's next fetches acknowledge: records, and log starts."""
        for replica in replicas:
            if not replica.needs_flush and replica.log.local.flush_due and not replica.log.is_offline:
                self._group_commit.request(replica.log)
        wanted = {replica.log: replica for replica in replicas if replica.needs_flush}
        due = [replica for replica in replicas if replica.log.local.start_note.is_due]
        if due:
            await asyncio.gather(*(self._note_start(replica) for replica in due))
        for log, error in (await self._group_commit.flush_all(wanted)).items():
            self._take_offline(wanted[log], OfflineCause.DISK_FAILED, str(error))

    async def _note_start(self, replica: Replica) -> None:
        try:
            await self._group_commit.note_start(replica.log)
        except KafkaError as error:  # the fetcher tries again
            _log.warning(
                "log_start_not_noted", topic=replica.topic, partition=replica.partition, error=str(error)
            )

    def close(self) -> None:
        """No leader's flush begins from now on, and the end of a running one changes nothing."""
        self._closing = True
