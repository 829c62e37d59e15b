"""A broker's copy of the cluster metadata: follows the active controller's log and applies every committed
entry in order.

Promises
* `on_applied(state, result)` is called on the event loop once for every entry, in log order, and once for a
  snapshot (then `result.from_snapshot` is true and the result tells the difference to the state before).
* Only committed entries arrive, so nothing is ever undone; an entry that does not fit the next index ends the
  stream and is asked for again.
* A stream of an older controller than one already heard is dropped: a deposed controller cannot hold a broker
  back.

An exception out of `on_applied` means that the broker no longer does what the metadata says: it is logged,
handed to `on_failure`, and the follower stops (fail-stop).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from ...proto import controller_pb2 as pb
from ...runtime import logs
from ...runtime.tasks import spawn
from ...wire.errors import ErrorCode
from ..state.cluster_state import ClusterState
from ..state.model import ApplyResult
from ..state.validation import StateValidator

if TYPE_CHECKING:
    from ...runtime.clock import Clock
    from .client import ControllerClient

log = logs.get(__name__)

SILENCE_S_MAX = 3.0  # no update, not even a keep-alive, for so long: ask again, perhaps elsewhere
RETRY_S = 0.1
SNAPSHOT_BYTES_MAX = 2 << 30

OnApplied = Callable[[ClusterState, ApplyResult], None]


class _StreamEnded(Exception):
    """This stream is of no more use; the reason is for the log."""


class MetadataFollower:
    """Keeps `state` up to date with the active controller."""

    def __init__(
        self,
        client: ControllerClient,
        node_id: int,
        clock: Clock,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        silence_s_max: float = SILENCE_S_MAX,
        validator: StateValidator | None = None,
    ) -> None:
        """`validator`: looks at the state after every entry; what it finds is a failure."""
        self.state = ClusterState()
        self.controller_epoch = 0
        self.committed_index = 0
        self._client = client
        self._node_id = node_id
        self._clock = clock
        self._on_applied: OnApplied | None = None
        self._on_failure = on_failure
        self._silence_s_max = silence_s_max
        self._validator = validator
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    async def start(self, on_applied: OnApplied | None = None) -> None:
        """Begins to follow; returns at once (`wait_for_index` waits for something to be there).  `on_applied`
        is called for every entry and snapshot, in order."""
        if self._task is None:
            self._on_applied = on_applied
            self._task = spawn(self._run(), "metadata-follower", self._failed)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            future.cancel()

    @property
    def applied_index(self) -> int:
        return self.state.index

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        """Returns once entry `index` is applied here.  Raises TimeoutError."""
        if self.state.index < index:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((index, future))
            try:
                await asyncio.wait_for(future, timeout_s)
            finally:
                self._waiters = [waiter for waiter in self._waiters if waiter[1] is not future]

    # ---- the task ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            node_id = self._client.candidate()
            try:
                await self._follow(node_id)
            except (_StreamEnded, grpc.aio.AioRpcError, TimeoutError) as ended:
                log.debug("metadata_stream_ended", controller=node_id, reason=_reason(ended))
            await self._clock.sleep(RETRY_S * (0.5 + self._clock.random()))

    def _failed(self, error: BaseException) -> None:
        log.failure("metadata_follower_failed", error, index=self.state.index)
        if self._on_failure is not None:
            self._on_failure(error)

    async def _follow(self, node_id: int) -> None:
        request = pb.FollowMetadataRequest(
            node_id=self._node_id, applied_index=self.state.index, applied_term=self.state.term
        )
        call = self._client.follow_metadata(node_id, request)
        assembly = _SnapshotAssembly()
        try:
            while True:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes with the stream's end, and
                # `stop` hangs.
                async with asyncio.timeout(self._silence_s_max):
                    update = await call.read()
                if update is grpc.aio.EOF:
                    raise _StreamEnded("the controller closed the stream")
                self._take(node_id, update, assembly)
        except (grpc.aio.AioRpcError, TimeoutError):
            self._client.note_failure(node_id)
            raise
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC says the same when the channel is closed, which ends the stream and not this task
            raise _StreamEnded("its channel was replaced") from cancelled
        finally:
            call.cancel()

    def _take(self, node_id: int, update: Any, assembly: _SnapshotAssembly) -> None:
        self._client.note_answer(node_id, update.status)
        if update.status.error != ErrorCode.NONE:
            raise _StreamEnded(update.status.message)
        if update.controller_epoch < self.controller_epoch:
            self._client.note_failure(node_id)
            raise _StreamEnded(
                f"controller epoch {update.controller_epoch} is older than {self.controller_epoch}"
            )
        self.controller_epoch = update.controller_epoch
        self.committed_index = max(self.committed_index, update.committed_index)
        if update.HasField("snapshot"):
            whole = assembly.add(update.snapshot)
            if whole is not None and update.snapshot.index <= self.state.index:
                raise _StreamEnded(
                    f"a snapshot of entry {update.snapshot.index} would go back from {self.state.index}"
                )
            if whole is not None:
                self._restore(whole)
        for entry in update.entries:
            if entry.index <= self.state.index:
                continue
            if entry.index != self.state.index + 1:
                raise _StreamEnded(f"entry {entry.index} after {self.state.index}")
            self._publish(self.state.apply(entry.index, entry.term, entry.command))
        if (
            not update.entries
            and not update.HasField("snapshot")
            and update.committed_index > self.state.index
        ):
            raise _StreamEnded(
                f"nothing came up to entry {update.committed_index}, and {self.state.index} is applied here"
            )

    def _restore(self, data: bytes) -> None:
        """A whole snapshot replaces the state in one step; one that cannot be read ends the stream and
        changes nothing."""
        if self.state.index > 1:
            log.info("metadata_snapshot_installed", before=self.state.index)
        try:
            result = self.state.restore(data)
        except ValueError as error:
            raise _StreamEnded(str(error)) from error
        self._publish(result)

    def _publish(self, result: ApplyResult) -> None:
        if self._validator is not None:
            self._validator.check(self.state, result)
        if self._on_applied is not None:
            self._on_applied(self.state, result)
        if self._waiters:
            for index, future in self._waiters:
                if index <= self.state.index and not future.done():
                    future.set_result(None)


class _SnapshotAssembly:
    """Chunks of one snapshot, in order."""

    __slots__ = ("_index", "_received", "_total_bytes")

    def __init__(self) -> None:
        self._index = -1
        self._total_bytes = 0
        self._received = bytearray()

    def add(self, chunk: pb.SnapshotChunk) -> bytes | None:
        if chunk.position == 0:
            self._index, self._total_bytes, self._received = chunk.index, chunk.total_bytes, bytearray()
        fits = (
            chunk.index == self._index
            and chunk.total_bytes == self._total_bytes
            and chunk.position == len(self._received)
        )
        if (
            not fits
            or chunk.total_bytes > SNAPSHOT_BYTES_MAX
            or len(self._received) + len(chunk.data) > chunk.total_bytes
        ):
            raise _StreamEnded("a snapshot chunk does not fit those before it")
        self._received += chunk.data
        if len(self._received) < self._total_bytes:
            return None
        whole = bytes(self._received)
        self._received = bytearray()
        return whole


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
