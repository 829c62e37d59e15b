"""One controller, put together: the metadata log, its leadership, and the gRPC service.

`ControllerLeadership` runs the planner while this node is the active controller.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...proto import controller_pb2_grpc
from ..planning.planner import ControllerConfig
from ..raft.thread import exit_process
from ..state.model import ApplyResult
from ..state.validation import StateValidator
from .controller_leadership import ControllerLeadership
from .metadata_log import MetadataLog, NotController
from .service import AskVoter, ControllerService

if TYPE_CHECKING:
    import grpc

    from ...runtime.clock import Clock


class ControllerNode:
    """A voter of the metadata quorum with its service.  `add_to_server` before the gRPC server starts."""

    def __init__(
        self,
        metadata: MetadataLog,
        clock: Clock,
        *,
        cluster_id: str = "",
        config: ControllerConfig | None = None,
        die: Callable[[str], None] = exit_process,
        ask_voter: AskVoter | None = None,
        validator: StateValidator | None = None,
    ) -> None:
        """`validator`: looks at the state after every entry of the log; what it finds ends the process."""
        config = config or ControllerConfig()
        self.metadata = metadata
        self._die = die
        if validator is not None:
            metadata.subscribe(partial(self._validate, validator))
        self.service = ControllerService(self.metadata, config, clock, ask_voter)
        self._leadership = ControllerLeadership(self.metadata, self.service, config, clock, cluster_id, die)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        controller_pb2_grpc.add_ControllerServicer_to_server(self.service, server)

    async def start(self) -> None:
        """Raises MetadataLogUnusable, PortInUse, OSError."""
        await self.metadata.start()

    def _validate(self, validator: StateValidator, _command: bytes, result: ApplyResult) -> None:
        try:
            validator.check(self.metadata.state, result)
        except AssertionError as error:
            self._die(f"an invariant of the metadata does not hold: {error}")

    async def stop(self) -> None:
        self.service.stop()
        await self._leadership.close()
        await self.metadata.stop()

    @property
    def is_active(self) -> bool:
        """Whether this node leads the quorum and its planner has begun."""
        try:
            self.service.require_planner()
        except NotController:
            return False
        return True

    @property
    def leader_id(self) -> int:
        return self.metadata.leader_id
