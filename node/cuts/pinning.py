"""Pins a cut for a client (docs/semantics.md C15, C16), in this order:

    pin         an entry of the metadata log: every broker that applies it keeps what the cut names
    confirm     another entry, once the controller knows from heartbeats that every replica does, and has lost
                nothing since the cut was taken: the pin stays for its whole time

When a replica has lost something, its broker does not report in time, or the client goes away, the pin is
taken back: by a task of its own, for the call of a client may end at any step.  Once the confirmation was
sent the pin may stand for its whole time, so the task goes on until the pin is gone.  A pin that comes after
it was taken back is unconfirmed, for a confirmation of a pin that is gone is refused.  A node that dies in
between leaves an unconfirmed pin, which expires soon, or one whose client got no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from ...controller.state.cluster_state import ClusterState
from ...controller.state.pinned_cuts import PinnedCut, with_pin_id
from ...proto import controller_pb2 as rpc
from ...proto import cuts_pb2 as pb
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import log_failure, spawn
from ...wire.errors import ErrorCode, KafkaError
from .pins import record_of

log = logs.get(__name__)
_TAKING_BACK_FAILED = log_failure("taking back a pin", consequence="it stays until it expires or is unpinned")

PATIENCE_S: Final = 30.0
"""Of a client that names no timeout."""
PATIENCE_S_MAX: Final = 45.0
"""Shorter than an unconfirmed pin lives."""
METADATA_S: Final = 5.0
TAKING_BACK_S: Final = 10.0
"""Of one attempt."""
TAKING_BACK_PAUSE_S_MIN: Final = 1.0
TAKING_BACK_PAUSE_S_MAX: Final = 60.0
TAKEN_BACK_S: Final = 0.5
"""An error waits until its pin is taken back, at most so long after the deadline: clients still wait then."""
TAKING_BACK_MAX: Final = 100
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 2.0
"""Between two cuts."""
LOST: Final = ErrorCode.OFFSET_OUT_OF_RANGE
"""Of what a cut names: no attempt to pin this cut can succeed."""

TakeCut = Callable[[Sequence[str], float], Awaitable[pb.Cut]]


class ClusterMetadata(Protocol):
    """`ClusterView`."""

    @property
    def state(self) -> ClusterState: ...

    async def wait_for_index(self, index: int, timeout_s: float) -> None: ...


class Controller(Protocol):
    """`ControllerClient`."""

    async def change_pinned_cut(
        self, request: rpc.ChangePinnedCutRequest, timeout_s: float = 30.0
    ) -> rpc.ChangePinnedCutReply: ...


class CutPinning:
    """See the module's text."""

    def __init__(self, cluster: ClusterMetadata, controller: Controller, clock: Clock, take: TakeCut) -> None:
        """`take(topics, timeout)` raises KafkaError."""
        self._cluster = cluster
        self._controller = controller
        self._clock = clock
        self._take = take
        self._taking_back: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    async def stop(self) -> None:
        self._is_stopped = True
        for task in self._taking_back:
            _left_behind(task.get_name())
            task.cancel()
        await asyncio.gather(*self._taking_back, return_exceptions=True)

    async def pin_new(
        self, name: str, topics: Sequence[str], retention_ms: int, timeout_s: float
    ) -> PinnedCut:
        """Takes cuts until one of them is pinned: the cleaner may overtake one.  A replica that has lost the
        same of a newer cut loses it of each.  Raises KafkaError."""
        deadline_s, pause_s, lost = self._deadline(timeout_s), PAUSE_S_MIN, None
        while True:
            cut = await self._take(topics, self._left_s(deadline_s))
            try:
                return await self._pin(name, cut, retention_ms, deadline_s)
            except KafkaError as error:
                if error.code is not LOST or self._clock.monotonic() + pause_s >= deadline_s:
                    raise
                if error.message == lost:
                    message = (
                        f"{lost}; a newer cut has the same problem: pin one when the transactions that are "
                        "open in the topics have ended, and all replicas are in sync"
                    )
                    raise KafkaError(error.code, message) from error
                lost = error.message
                log.info("cut_overtaken", cut=name, reason=lost)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def pin(self, name: str, cut: pb.Cut, retention_ms: int, timeout_s: float) -> PinnedCut:
        """Raises KafkaError."""
        return await self._pin(name, cut, retention_ms, self._deadline(timeout_s))

    def _deadline(self, timeout_s: float) -> float:
        return self._clock.monotonic() + min(timeout_s if timeout_s > 0 else PATIENCE_S, PATIENCE_S_MAX)

    async def _pin(self, name: str, cut: pb.Cut, retention_ms: int, deadline_s: float) -> PinnedCut:
        pin_id = str(self._clock.uuid())
        request = rpc.ChangePinnedCutRequest(pin=record_of(name, pin_id, cut), retention_ms=retention_ms)
        if len(self._taking_back) >= TAKING_BACK_MAX:
            message = f"{TAKING_BACK_MAX} pins are still being taken back at this node: try again later"
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
        confirmed_until_s = None
        try:
            await self._controller.change_pinned_cut(request, self._left_s(deadline_s))
            confirmed_until_s = self._clock.monotonic() + retention_ms / 1000
            request = rpc.ChangePinnedCutRequest(confirm=pin_id, retention_ms=retention_ms)
            reply = await self._controller.change_pinned_cut(request, self._left_s(deadline_s))
            await self._wait_for(reply.metadata_index)
            return self._present(pin_id)
        except KafkaError as error:
            is_timeout = error.code is ErrorCode.REQUEST_TIMED_OUT
            if confirmed_until_s is None and not is_timeout:
                raise  # the controller has refused the pin
            taking_back = self._take_back(name, pin_id, confirmed_until_s)
            await asyncio.wait((taking_back,), timeout=max(TAKEN_BACK_S, self._left_s(deadline_s)))
            if confirmed_until_s is not None and is_timeout:
                message = f"not every replica was known in time to keep the cut: {error.message}"
                raise KafkaError(error.code, message) from error
            raise
        except BaseException:  # the client has gone away
            self._take_back(name, pin_id, confirmed_until_s)
            raise

    def _left_s(self, deadline_s: float) -> float:
        return max(0.1, deadline_s - self._clock.monotonic())

    async def unpin(self, pin_id: str) -> None:
        """Raises KafkaError."""
        request = rpc.ChangePinnedCutRequest(unpin=pin_id)
        reply = await self._controller.change_pinned_cut(request, TAKING_BACK_S)
        await self._wait_for(reply.metadata_index)

    def _take_back(self, name: str, pin_id: str, confirmed_until_s: float | None) -> asyncio.Task[None]:
        """`confirmed_until_s`: when the pin ends should it be confirmed; None: it is not."""

        async def until_gone() -> None:
            pause_s = TAKING_BACK_PAUSE_S_MIN
            while not self._is_stopped:
                try:
                    await self._controller.change_pinned_cut(
                        rpc.ChangePinnedCutRequest(unpin=pin_id), TAKING_BACK_S
                    )
                    return
                except KafkaError as error:
                    is_over = confirmed_until_s is None or self._clock.monotonic() >= confirmed_until_s
                    consequence = "it expires by itself" if is_over else "tried again"
                    log.warning("pin_not_taken_back", cut=name, reason=error, consequence=consequence)
                if is_over:
                    return
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, TAKING_BACK_PAUSE_S_MAX)
            _left_behind(name)

        task = spawn(until_gone(), name, _TAKING_BACK_FAILED)
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)
        return task

    async def _wait_for(self, index: int) -> None:
        try:
            await self._cluster.wait_for_index(index, METADATA_S)
        except TimeoutError:
            message = "this node does not get the metadata"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None

    def _present(self, pin_id: str) -> PinnedCut:
        found = with_pin_id(self._cluster.state.pinned_cuts, pin_id)
        if found is None:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "the pin has gone meanwhile")
        return found


def _left_behind(name: str) -> None:
    consequence = "it stays until it expires or is unpinned, a minute unless it was confirmed"
    log.warning("pin_left_behind", cut=name, consequence=consequence)
