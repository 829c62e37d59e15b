"""Pipelined plans: the controller makes each plan on the state that the commands before it lead to, without
waiting for them.

One sync of the journal takes any number of commands, but a plan needs to know what the plan before it
changes. `PlanPipeline.state` predicts that: a copy of the applied state, with the commands in flight applied
to it.  Without commands in flight it is the applied state itself.

* A plan sees every command that was proposed before it, in the order of the log.
* No client gets an answer that rests on uncommitted commands: also an error waits for the commands that were
  in flight when the plan was made (`wait_committed`).
* A command whose outcome differs from the prediction (rejected, lost, at another index) invalidates the
  predicted state; the pipeline makes it again from the applied state and the commands still in flight.
* A pipeline belongs to one leadership and ends with it (`close`).
* Requests of clients are planned only while less than `COMMANDS_MAX` commands and `BYTES_MAX` bytes are in
  flight (`wait_for_space`), in the order of their arrival.  Fencing and elections never wait there: at most
  these commands, one slice of a request (`topics.SLICE_TOPICS_MAX`), and requests of brokers are in the log
  before them.
* Requests of brokers never wait.  With `BROKER_COMMANDS_MAX` commands or `BROKER_BYTES_MAX` bytes in flight
  they are rejected (`require_space`): these bounds are below those of the log, which leaves space for
  fencing.

Safety rests on none of this: commands carry the epochs that they were planned with, and `apply` compares
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from .metadata_log import NotController, ProposalUnknown

if TYPE_CHECKING:
    from ..state.cluster_state import ClusterState
    from ..state.model import ApplyResult
    from .metadata_log import MetadataLog

PROPOSAL_S_MAX = 8.0
COMMANDS_MAX = 256
BYTES_MAX = 1 << 20
BROKER_COMMANDS_MAX = 5_000
BROKER_BYTES_MAX = 32 << 20


@dataclass(slots=True, eq=False)
class Proposed:
    """A command in flight.  `predicted`: its result on the predicted state; None before that state is
    made."""

    command: bytes
    future: asyncio.Future[ApplyResult]
    predicted: ApplyResult | None = None

    @property
    def differs_from_prediction(self) -> bool:
        """Whether the outcome of a finished command differs from the prediction."""
        if self.predicted is None:
            return False
        if self.future.cancelled() or self.future.exception() is not None:
            return True
        result = self.future.result()
        return (result.index, result.error, result.value) != (
            self.predicted.index,
            self.predicted.error,
            self.predicted.value,
        )


class PlanPipeline:
    """The pipeline of one leadership.  Owned by the event loop."""

    def __init__(self, log: MetadataLog, term: int) -> None:
        self._log = log
        self.term = term
        self._ahead: ClusterState | None = None
        self._in_flight: deque[Proposed] = deque()
        self._bytes = 0
        self._closed = False
        self._queue = asyncio.Lock()
        self._space_freed = asyncio.Event()

    def close(self) -> None:
        """The leadership is over: every request in `wait_for_space` gets NotController."""
        self._closed = True
        self._space_freed.set()

    # ---- what plans are made on ----------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The state after all commands in flight; read only."""
        return self._look_ahead() or self._log.state

    def _look_ahead(self) -> ClusterState | None:
        self._remove_ended()
        if self._in_flight and self._ahead is None:
            self._ahead = self._log.state.copy()
            for proposed in self._in_flight:
                if not proposed.future.done():
                    self._predict(proposed)
        return self._ahead

    def _predict(self, proposed: Proposed) -> None:
        assert self._ahead is not None
        proposed.predicted = self._ahead.apply(self._ahead.index + 1, self.term, proposed.command)

    def _remove_ended(self) -> None:
        while self._in_flight and self._in_flight[0].future.done():
            ended = self._in_flight.popleft()
            self._bytes -= len(ended.command)
            if ended.differs_from_prediction:
                self._ahead = None
        if not self._in_flight:
            self._ahead = None

    # ---- proposing -----------------------------------------------------------------------------------------

    async def wait_for_space(self, timeout_s: float = PROPOSAL_S_MAX) -> None:
        """Returns when a client's request may be planned.  Raises REQUEST_TIMED_OUT (nothing was proposed),
        NotController."""
        try:
            async with asyncio.timeout(timeout_s), self._queue:
                while not self._closed and (len(self._in_flight) >= COMMANDS_MAX or self._bytes >= BYTES_MAX):
                    self._space_freed.clear()
                    await self._space_freed.wait()
        except TimeoutError:
            message = (
                f"the metadata changes before this one took longer than {timeout_s:g} s; nothing was "
                "changed for it"
            )
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None
        if self._closed:
            raise NotController(self._log.leader_id)

    def require_space(self) -> None:
        """Checks the bounds for requests of brokers and clients.  Raises THROTTLING_QUOTA_EXCEEDED: nothing
        was proposed."""
        self._remove_ended()
        if len(self._in_flight) >= BROKER_COMMANDS_MAX or self._bytes >= BROKER_BYTES_MAX:
            message = (
                f"{len(self._in_flight)} metadata changes, of {self._bytes} bytes, are in flight: try "
                "again later"
            )
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    def propose(self, command: pb.Command) -> Proposed:
        """Proposes the command at once.  Raises NotController, THROTTLING_QUOTA_EXCEEDED."""
        self._remove_ended()
        data = command.SerializeToString(deterministic=True)
        proposed = Proposed(data, self._log.propose(data))
        self._in_flight.append(proposed)
        self._bytes += len(data)
        if self._ahead is not None:
            self._predict(proposed)
        proposed.future.add_done_callback(self._ended)
        return proposed

    def propose_in_order(self, commands: Iterable[pb.Command]) -> list[Proposed]:
        """Later commands rely on earlier ones: none is proposed after a command whose prediction is an
        error."""
        found: list[Proposed] = []
        for command in commands:
            if found and self._is_predicted_to_fail(found[-1]):
                break
            found.append(self.propose(command))
        return found

    def _is_predicted_to_fail(self, proposed: Proposed) -> bool:
        self._look_ahead()
        return proposed.predicted is not None and proposed.predicted.error != ErrorCode.NONE

    def _ended(self, future: asyncio.Future[ApplyResult]) -> None:
        if not future.cancelled():
            future.exception()  # retrieved, because the caller that awaited it may have given up
        self._remove_ended()
        self._space_freed.set()

    # ---- outcomes ------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Proposed | None:
        """The last command in flight: when it is committed, so is everything that a plan made now rests
        on."""
        self._remove_ended()
        return self._in_flight[-1] if self._in_flight else None

    async def outcome(self, proposed: Proposed, timeout_s: float = PROPOSAL_S_MAX) -> ApplyResult:
        """Raises NotController (surely not applied) or ProposalUnknown.  It stays in flight when the caller
        gives up."""
        try:
            return await asyncio.wait_for(asyncio.shield(proposed.future), timeout_s)
        except TimeoutError:
            raise ProposalUnknown(
                f"the quorum did not commit within {timeout_s:g} s; the outcome is unknown"
            ) from None

    async def wait_committed(self, rests_on: Proposed | None) -> None:
        """Returns when the command is committed on which a plan rested.  Raises like `outcome`."""
        if rests_on is not None:
            await self.outcome(rests_on)
