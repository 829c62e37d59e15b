"""Moves of replicas between the data folders of this node (KIP-113): the requests for them, and the task that
carries them out.

The work itself is the future replica's (`storage/moving`).  This task gives each of them a slice in turn, in
a thread of its own, no faster than `replica.alter.log.dirs.io.max.bytes.per.second` for all together; a
change of that holds at once.  A move that fails for want of room, or because the log cannot be read, is tried
again after a pause; one whose folder fails is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure, spawn
from ...storage.folders.data_folders import DataFolders
from ...storage.moving.future_replica import SLICE_BYTES, FutureReplica
from ...wire.errors import ErrorCode, KafkaError

RETRY_S = 10.0
LOOK_S = 0.2
"""The pause of a move without progress: the log is not open yet, or a flush of it is running."""
RATE_LOOK_S = 1.0
log = logs.get(__name__)


class ReplicaMoves:
    """See the module's text.  Used on the node's loop."""

    def __init__(
        self,
        directory: DataFolders,
        clock: Clock,
        rate: Callable[[], int | None],
        is_full: Callable[[Path], bool],
        on_failure: OnFailure,
    ) -> None:
        """`rate()`: bytes a second at present; None: no limit, 0: nothing moves.  `is_full(folder)`: what is
        left of that disk is for the node itself.  `on_failure(error)`: a defect ended the task."""
        self._on_failure = on_failure
        self._directory = directory
        self._clock = clock
        self._rate = rate
        self._is_full = is_full
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="replica-moves")
        self._making: dict[FutureReplica, asyncio.Task[None]] = {}
        self._paused: dict[FutureReplica, float] = {}
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.copied_bytes = 0

    def start(self) -> None:
        self._task = spawn(self._run(), "replica-moves", self._on_failure)

    async def stop(self) -> None:
        """After this no log is touched any more; moves go on at the next start."""
        tasks = [*self._making.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._executor.shutdown)

    @property
    def count(self) -> int:
        return len(self._directory.futures)

    async def move_to(self, topic: str, partition: int, path: Path) -> None:
        """Returns when the future replica is there, so that a restart goes on with the move; or at once, when
        there is nothing to move.  Raises KafkaError as `DataFolders.move_to`."""
        future = self._directory.move_to(topic, partition, path)
        if future is None or future.is_made:
            return
        making = self._making.get(future)
        if making is None:
            making = self._making[future] = asyncio.create_task(self._make(future), name="future-replica")
            making.add_done_callback(lambda _task: self._making.pop(future, None))
        await asyncio.shield(making)
        self._wanted.set()

    async def _make(self, future: FutureReplica) -> None:
        """Raises KAFKA_STORAGE_ERROR; then there is no move."""
        try:
            work = future.turn()
            if work is not None:
                await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except (KafkaError, OSError) as error:
            self._refused(future, error)
            if not future.is_over:
                self._directory.end_move(future.key)
            message = f"no future replica of {future.name} can be made in {future.target.path}: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        log.info("replica_move_begun", log=future.name, source=future.origin.path, target=future.target.path)

    async def _run(self) -> None:
        while True:
            if not self._directory.futures:
                self._paused.clear()
                self._wanted.clear()
                await self._wanted.wait()
            try:
                progress = [await self._take_turn(each) for each in list(self._directory.futures.values())]
            except Exception:  # by a defect: other moves, and the next try, are to go on
                log.exception("replica_move_failed")
                progress = []
            if not any(progress):
                await self._clock.sleep(LOOK_S)

    async def _take_turn(self, future: FutureReplica) -> bool:
        """Whether something was done."""
        rate = self._rate()
        if future in self._making or rate == 0 or self._clock.monotonic() < self._paused.get(future, 0.0):
            return False
        if self._is_full(future.target.path):
            self._paused[future] = self._clock.monotonic() + RETRY_S
            log.warning("replica_move_needs_room", log=future.name, target=future.target.path)
            return False
        try:
            work = future.turn(SLICE_BYTES if rate is None else min(SLICE_BYTES, rate))
            if work is None:
                return future.is_over
            copied = await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except (KafkaError, OSError) as error:
            self._refused(future, error)
            return False
        self.copied_bytes += copied
        await self._keep_to_rate(copied)
        return True

    def _refused(self, future: FutureReplica, error: KafkaError | OSError) -> None:
        self._paused[future] = self._clock.monotonic() + RETRY_S
        log.warning("replica_move_held_up", log=future.name, target=future.target.path, reason=error)
        try:
            future.refused(error)
        except OSError as second:
            future.target.disk_failed(second)

    async def _keep_to_rate(self, copied: float) -> None:
        while copied > 0 and (rate := self._rate()) is not None:
            pause_s = min(RATE_LOOK_S, copied / rate) if rate else RATE_LOOK_S
            await self._clock.sleep(pause_s)
            copied -= pause_s * rate
