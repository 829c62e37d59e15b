"""Plans that do not wait for one another: each is made on the state that the commands before it lead to.

One sync of the journal takes as many commands as there are, but a plan needs to know what the one before it has changed.
`Planning.state` knows it ahead of the quorum: the applied state, with what is under way applied to a copy of it.  When nothing
is under way it is the applied state itself.

* A plan sees every command that was proposed before it, in the order of the log.
* Nobody is told what rests on something uncommitted: also a refusal waits for what was under way when it was planned (`settled`).
* What comes out otherwise than foreseen (refused, lost, at another index) throws the foreseen state away; it is made again from
  what is applied, and from what is still under way.
* It belongs to one leadership and ends with it (`close`).
* Whoever is asked by clients plans only while less than `COMMANDS_MAX` commands and `BYTES_MAX` bytes are under way (`room`), in
  the order in which they came.  Fencing and elections never wait there: no more than this, one slice of a request
  (`topics.SLICE_TOPICS_MAX`), and what brokers asked for can be in the log before them.
* Brokers never wait behind clients, and what they ask for waits nowhere.  With `BROKER_COMMANDS_MAX` commands or
  `BROKER_BYTES_MAX` bytes under way it is refused (`require_space`): below the bounds of the log, or there would be no place left
  for fencing.

Safety rests on none of this: commands carry the epochs that they were planned with, and `apply` compares them.
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
    """A command on its way.  `foreseen`: what it comes to on the state ahead; None while nobody has looked."""

    command: bytes
    future: asyncio.Future[ApplyResult]
    foreseen: ApplyResult | None = None

    @property
    def came_otherwise(self) -> bool:
        """It is decided, and not as it was foreseen."""
        if self.foreseen is None:
            return False
        if self.future.cancelled() or self.future.exception() is not None:
            return True
        result = self.future.result()
        return (result.index, result.error, result.value) != (self.foreseen.index, self.foreseen.error, self.foreseen.value)


class Planning:
    """Of one leadership.  Owned by the event loop."""

    def __init__(self, log: MetadataLog, term: int) -> None:
        self._log = log
        self.term = term
        self._ahead: ClusterState | None = None
        self._under_way: deque[Proposed] = deque()
        self._bytes = 0
        self._closed = False
        self._turn = asyncio.Lock()
        self._eased = asyncio.Event()

    def close(self) -> None:
        """The leadership is over: whoever waits for room is told so."""
        self._closed = True
        self._eased.set()

    # ---- what plans are made on -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The state after everything that is under way; only for reading."""
        return self._look_ahead() or self._log.state

    def _look_ahead(self) -> ClusterState | None:
        self._settle()
        if self._under_way and self._ahead is None:
            self._ahead = self._log.state.copy()
            for proposed in self._under_way:
                if not proposed.future.done():
                    self._foresee(proposed)
        return self._ahead

    def _foresee(self, proposed: Proposed) -> None:
        assert self._ahead is not None
        proposed.foreseen = self._ahead.apply(self._ahead.index + 1, self.term, proposed.command)

    def _settle(self) -> None:
        while self._under_way and self._under_way[0].future.done():
            ended = self._under_way.popleft()
            self._bytes -= len(ended.command)
            if ended.came_otherwise:
                self._ahead = None
        if not self._under_way:
            self._ahead = None

    # ---- proposing ------------------------------------------------------------------------------------------------------------

    async def room(self, timeout_s: float = PROPOSAL_S_MAX) -> None:
        """Returns when a client's request may be planned.  Raises REQUEST_TIMED_OUT (nothing was proposed), NotController."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                while not self._closed and (len(self._under_way) >= COMMANDS_MAX or self._bytes >= BYTES_MAX):
                    self._eased.clear()
                    await self._eased.wait()
        except TimeoutError:
            message = f"the metadata changes before this one took longer than {timeout_s:g} s; nothing was changed for it"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None
        if self._closed:
            raise NotController(self._log.leader_id)

    def require_space(self) -> None:
        """For what a request comes to, whoever asks.  Raises THROTTLING_QUOTA_EXCEEDED: nothing was proposed."""
        self._settle()
        if len(self._under_way) >= BROKER_COMMANDS_MAX or self._bytes >= BROKER_BYTES_MAX:
            message = f"{len(self._under_way)} metadata changes, of {self._bytes} bytes, are under way: try again later"
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    def propose(self, command: pb.Command) -> Proposed:
        """At once.  Raises NotController, THROTTLING_QUOTA_EXCEEDED."""
        self._settle()
        data = command.SerializeToString(deterministic=True)
        proposed = Proposed(data, self._log.submit(data))
        self._under_way.append(proposed)
        self._bytes += len(data)
        if self._ahead is not None:
            self._foresee(proposed)
        proposed.future.add_done_callback(self._ended)
        return proposed

    def propose_in_order(self, commands: Iterable[pb.Command]) -> list[Proposed]:
        """Later ones rely on earlier ones: nothing is proposed after one that will be refused."""
        found: list[Proposed] = []
        for command in commands:
            if found and self._will_be_refused(found[-1]):
                break
            found.append(self.propose(command))
        return found

    def _will_be_refused(self, proposed: Proposed) -> bool:
        self._look_ahead()
        return proposed.foreseen is not None and proposed.foreseen.error != ErrorCode.NONE

    def _ended(self, future: asyncio.Future[ApplyResult]) -> None:
        if not future.cancelled():
            future.exception()  # looked at: whoever waited for it may have given up
        self._settle()
        self._eased.set()

    # ---- what became of it ----------------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Proposed | None:
        """The last command under way: when it is committed, everything that a plan made now rests on is."""
        self._settle()
        return self._under_way[-1] if self._under_way else None

    async def outcome(self, proposed: Proposed, timeout_s: float = PROPOSAL_S_MAX) -> ApplyResult:
        """Raises NotController (surely not applied) or ProposalUnknown.  It stays under way when whoever asks gives up."""
        try:
            return await asyncio.wait_for(asyncio.shield(proposed.future), timeout_s)
        except TimeoutError:
            raise ProposalUnknown(f"the quorum did not commit within {timeout_s:g} s; the outcome is unknown") from None

    async def settled(self, rests_on: Proposed | None) -> None:
        """Returns when what a plan rested on is committed.  Raises what became of it otherwise."""
        if rests_on is not None:
            await self.outcome(rests_on)
