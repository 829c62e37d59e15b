"""Pipelined plans: the controller makes each plan on the state that the commands before it lead to, without
waiting for them.

One sync of the journal takes any number of commands, but a plan needs to know what the plan before it
changes. `PlanPipeline.state` predicts that: a copy of the applied state, with the commands in flight applied
to it.  Without commands in flight it is the applied state itself.

* A command is applied to the copy first, and proposed only if that raises nothing: a defect then fails one
  request.  In the log, every node would stop at it, and again after each restart.  The log applies it to the
  same state: only this controller proposes in its term, and a command of another term is refused unseen.
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
from ...runtime import logs
from ...wire.errors import ErrorCode, KafkaError
from .metadata_log import NotController, ProposalUnknown

if TYPE_CHECKING:
    from ..state.cluster_state import ClusterState
    from ..state.model import ApplyResult
    from .metadata_log import MetadataLog

log = logs.get(__name__)

PROPOSAL_S_MAX = 8.0
COMMANDS_MAX = 256
BYTES_MAX = 1 << 20
BROKER_COMMANDS_MAX = 5_000
BROKER_BYTES_MAX = 32 << 20


class CommandFails(KafkaError):
    """Applying the command raises: a defect.  It was not proposed."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


@dataclass(slots=True, eq=False)
class Proposed:
    """A command in flight.  `predicted`: its result on the predicted state."""

    command: bytes
    future: asyncio.Future[ApplyResult]
    predicted: ApplyResult

    @property
    def differs_from_prediction(self) -> bool:
        """Whether the outcome of a finished command differs from the prediction."""
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
        self._remove_ended()
        return self._look_ahead() if self._in_flight else self._log.state

    def _look_ahead(self) -> ClusterState:
        if self._ahead is None:
            ahead = self._log.state.copy()
            for proposed in self._in_flight:
                if not proposed.future.done():
                    proposed.predicted = ahead.apply(ahead.index + 1, self.term, proposed.command)
            self._ahead = ahead
        return self._ahead

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
        """Proposes the command at once.  Raises CommandFails, NotController, THROTTLING_QUOTA_EXCEEDED:
        nothing was proposed."""
        self._remove_ended()
        data = command.SerializeToString(deterministic=True)
        ahead, self._ahead = self._look_ahead(), None  # made anew unless the command is proposed
        try:
            predicted = ahead.apply(ahead.index + 1, self.term, data)
        except Exception as error:
            kinds = [str(operation.WhichOneof("kind")) for operation in command.operations]
            log.exception("command_fails", operations=kinds)
            raise CommandFails(f"a defect: {', '.join(kinds)} cannot be applied: {error!r}") from error
        proposed = Proposed(data, self._log.propose(data), predicted)
        self._ahead = ahead
        self._in_flight.append(proposed)
        self._bytes += len(data)
        proposed.future.add_done_callback(self._ended)
        return proposed

    def propose_in_order(self, commands: Iterable[pb.Command]) -> list[Proposed]:
        """Later commands rely on earlier ones: none is proposed after a command whose prediction is an
        error."""
        found: list[Proposed] = []
        for command in commands:
            if found and not found[-1].predicted.ok:
                break
            found.append(self.propose(command))
        return found

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
