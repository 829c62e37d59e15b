"""What replication does from time to time: maintenance of ISRs, and checkpoints of high watermarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..runtime import logs
from ..runtime.clock import Clock
from ..runtime.tasks import OnFailure, spawn
from .replica.hosted import HostedReplicas
from .replica.replica import Replica

_log = logs.get(__name__)

REPLICAS_A_TURN = 500
"""Replicas between two turns of the loop: thousands of partitions must not hold it."""


class ReplicationUpkeep:
    """Two tasks, from `start` until `close`."""

    def __init__(
        self,
        clock: Clock,
        hosted: HostedReplicas,
        *,
        maintain: Callable[[Replica], None],
        maintain_interval_s: float,
        summarize: Callable[[float], None],
        write_checkpoints: Callable[[], None],
        checkpoint_interval_s: float,
        on_failure: OnFailure,
    ) -> None:
        """`maintain` looks after one replica; `summarize(now_s)` writes log lines that count what had no line
        of its own; `write_checkpoints` raises OSError; `on_failure(error)`: a defect ended a task."""
        self._on_failure = on_failure
        self._clock = clock
        self._hosted = hosted
        self._maintain = maintain
        self._maintain_interval_s = max(0.05, maintain_interval_s)
        self._summarize = summarize
        self._write = write_checkpoints
        self._checkpoint_interval_s = checkpoint_interval_s
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    def start(self) -> None:
        """On the loop, any number of times."""
        if not self._tasks and not self._is_closing:
            self._tasks = [
                spawn(self._maintain_all(), "isr-maintenance", self._on_failure),
                spawn(self._checkpoint(), "high-watermark-checkpoint", self._on_failure),
            ]

    async def _maintain_all(self) -> None:
        while not self._is_closing:
            await self._clock.sleep(self._maintain_interval_s)
            self._summarize(self._clock.monotonic())
            for count, replica in enumerate(self._hosted, start=1):
                try:
                    self._maintain(replica)
                except Exception:  # a defect at one partition must not stop the others' maintenance
                    _log.exception("isr_maintenance_failed", topic=replica.topic, partition=replica.partition)
                if count % REPLICAS_A_TURN == 0:
                    await asyncio.sleep(0)

    async def _checkpoint(self) -> None:
        while not self._is_closing:
            await self._clock.sleep(self._checkpoint_interval_s)
            self.write_checkpoints()

    def write_checkpoints(self) -> None:
        try:
            self._write()
        except OSError as error:
            # only costs recovery time; a failing disk fails appends
            _log.error("checkpoint_not_written", error=str(error))

    def begin_close(self) -> None:
        """The tasks end at their next turn."""
        self._is_closing = True

    async def close(self) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
