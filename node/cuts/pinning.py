"""Pins a cut for a client (docs/semantics.md C15, C16), in this order:

    pin         an entry of the metadata log: every broker that applies it keeps what the cut names
    confirm     another entry, once the controller knows from heartbeats that every replica does, and has lost
                nothing since the cut was taken: the pin stays for its whole time

When a replica has lost something, or its broker does not report in time, the pin is taken back.  A node that
dies in between leaves an unconfirmed pin, which expires soon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from ...controller.state.cluster_state import ClusterState
from ...controller.state.pinned_cuts import PinnedCut, with_pin_id
from ...proto import controller_pb2 as rpc
from ...proto import cuts_pb2 as pb
from ...runtime import logs
from ...runtime.clock import Clock
from ...wire.errors import ErrorCode, KafkaError
from .pins import record_of

log = logs.get(__name__)

PATIENCE_S: Final = 30.0
"""Of a client that names no timeout."""
PATIENCE_S_MAX: Final = 45.0
"""Shorter than an unconfirmed pin lives."""
METADATA_S: Final = 5.0
TAKING_BACK_S: Final = 10.0
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

    async def pin_new(
        self, name: str, topics: Sequence[str], retention_ms: int, timeout_s: float
    ) -> PinnedCut:
        """Takes cuts until one of them is pinned: the cleaner may overtake one.  Raises KafkaError."""
        deadline_s = self._deadline(timeout_s)
        while True:
            cut = await self._take(topics, deadline_s - self._clock.monotonic())
            try:
                return await self._pin(name, cut, retention_ms, deadline_s)
            except KafkaError as error:
                if error.code is not LOST or self._clock.monotonic() >= deadline_s:
                    raise
                log.info("cut_overtaken", cut=name, reason=error.message)

    async def pin(self, name: str, cut: pb.Cut, retention_ms: int, timeout_s: float) -> PinnedCut:
        """Raises KafkaError."""
        return await self._pin(name, cut, retention_ms, self._deadline(timeout_s))

    def _deadline(self, timeout_s: float) -> float:
        return self._clock.monotonic() + min(timeout_s if timeout_s > 0 else PATIENCE_S, PATIENCE_S_MAX)

    async def _pin(self, name: str, cut: pb.Cut, retention_ms: int, deadline_s: float) -> PinnedCut:
        pin_id = str(self._clock.uuid())
        request = rpc.ChangePinnedCutRequest(pin=record_of(name, pin_id, cut), retention_ms=retention_ms)
        await self._controller.change_pinned_cut(request, self._left_s(deadline_s))
        try:
            request = rpc.ChangePinnedCutRequest(confirm=pin_id, retention_ms=retention_ms)
            reply = await self._controller.change_pinned_cut(request, self._left_s(deadline_s))
            await self._wait_for(reply.metadata_index)
            return self._present(pin_id)
        except KafkaError as error:
            await self._take_back(pin_id)
            if error.code is ErrorCode.REQUEST_TIMED_OUT:
                message = f"not every replica was known in time to keep the cut: {error.message}"
                raise KafkaError(error.code, message) from error
            raise

    def _left_s(self, deadline_s: float) -> float:
        return max(0.1, deadline_s - self._clock.monotonic())

    async def unpin(self, pin_id: str) -> None:
        """Raises KafkaError."""
        request = rpc.ChangePinnedCutRequest(unpin=pin_id)
        reply = await self._controller.change_pinned_cut(request, TAKING_BACK_S)
        await self._wait_for(reply.metadata_index)

    async def _take_back(self, pin_id: str) -> None:
        try:
            await self.unpin(pin_id)
        except KafkaError as error:
            log.warning("pin_not_taken_back", pin=pin_id, reason=error, consequence="it expires by itself")

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
