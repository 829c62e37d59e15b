"""What a node does from time to time, one step after another in one task: tries again what failed on a full
disk, and removes what has expired, a little at a time.

A step that reads or writes files, or computes for long, does it in the thread of the housekeeping: the loop
serves clients meanwhile.  A step handles every error of the disk itself, and tries again the next time.  Any
other error is a defect, and ends the node: without this task a replica that did not open would stay offline,
also when the disk has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ...replication.replica.replica import Replica
from ...runtime.clock import Clock, until_next
from ...runtime.tasks import OnFailure, spawn
from ...storage.directory.set_aside import DamagedRetention
from ...storage.folders.data_folders import DataFolders
from ..observation.client_metrics import ClientMetrics
from ..serving.codecs import Codecs
from ..settings.configuration import Configuration
from .disk_reserve import DiskReserves

ROUND_S: Final = 2.0
EXPIRY_S: Final = 60.0


@dataclass(slots=True, frozen=True)
class HousekeepingStep:
    """`run` is called on the loop."""

    run: Callable[[], Awaitable[object] | None]
    every_s: float = ROUND_S


class Housekeeping:
    """See the module's text.  `start` and `stop` on the loop."""

    def __init__(
        self,
        configuration: Configuration,
        clock: Clock,
        directory: DataFolders,
        reserves: DiskReserves,
        codecs: Codecs,
        open_again: Callable[[], None],
        client_metrics: ClientMetrics,
        replicas: Callable[[], Iterable[Replica]],
        on_failure: OnFailure,
    ) -> None:
        """`open_again()` tries the replicas that did not open."""
        self._configuration = configuration
        self._clock = clock
        self._directory = directory
        self._reserves = reserves
        self._codecs = codecs
        self._replicas = replicas
        self._on_failure = on_failure
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._task: asyncio.Task[None] | None = None
        step = HousekeepingStep
        self.steps: Final[Mapping[str, HousekeepingStep]] = {
            "reserves": step(lambda: self._in_thread(self._restore_reserves)),
            "flush notes": step(self._sync_flush_notes),
            "codecs": step(lambda: self._in_thread(self._load_codec)),
            "unopened replicas": step(open_again),
            "silent clients": step(lambda: client_metrics.expire(int(1000 * clock.monotonic()))),
            "damaged logs": step(lambda: self._in_thread(self._remove_damaged), EXPIRY_S),
            "idle producers": step(self._expire_producers, EXPIRY_S),
        }

    def start(self) -> None:
        self._task = spawn(self._keep_house(), "housekeeping", self._on_failure)

    async def stop(self) -> None:
        """After this no folder is touched any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._executor.shutdown)

    async def _keep_house(self) -> None:
        done_at_s = dict.fromkeys(self.steps, self._clock.monotonic())
        while True:
            await self._clock.sleep(until_next(self._clock.monotonic(), ROUND_S))
            for name, step in self.steps.items():
                now_s = self._clock.monotonic()
                if step.every_s > ROUND_S and now_s - done_at_s[name] < step.every_s:
                    continue
                done_at_s[name] = now_s
                if (work := step.run()) is not None:
                    await work

    def _in_thread(self, work: Callable[[], None]) -> Awaitable[None]:
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _restore_reserves(self) -> None:
        self._reserves.restore(folder.path for folder in self._directory.folders if not folder.is_offline)

    async def _sync_flush_notes(self) -> None:
        for folder in self._directory.folders:
            try:
                await self._in_thread(folder.sync_notes)
            except OSError as error:
                folder.disk_failed(error)

    def _load_codec(self) -> None:
        if self._codecs.is_due:
            self._codecs.load_next()

    def _remove_damaged(self) -> None:
        kept = DamagedRetention(
            self._configuration.integer("log.damaged.retention.ms"),
            self._configuration.integer("log.damaged.retention.bytes"),
        )
        self._directory.remove_old_damaged(self._clock.wall_ms(), kept)

    async def _expire_producers(self) -> None:
        for replica in self._replicas():
            replica.log.producers.expire(int(self._clock.monotonic() * 1000))
            await asyncio.sleep(0)
