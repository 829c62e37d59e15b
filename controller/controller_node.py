"""One controller, put together: the metadata log, the duties of whoever is active, and the gRPC service.

What happens when this node becomes the active controller, in this order:
1. its own no-op is applied, so everything that was committed before is in the state (`MetadataLog`);
2. it names itself, and a cluster that has no id yet gets one (`take_office`);
3. only when that is applied do its duties begin: it answers, its timers run, sessions start whole.
When it stops being active, or proposes into another term, the duties of that term are over; nothing of them is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..proto import controller_pb2_grpc
from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from .active import ActiveController, ControllerConfig
from .metadata_log import MetadataLog, NotController
from .model import INITIAL_FEATURES
from .raft.contract import RaftTimings
from .raft.thread import exit_process
from .service import AskVoter, ControllerService

if TYPE_CHECKING:
    import grpc

    from ..runtime.clock import Clock
    from ..runtime.disk import Disk
    from ..runtime.tls import MutualTls

log = logs.get(__name__)

RETRY_S = 0.2


class ControllerNode:
    """A voter of the metadata quorum with its service.  `add_to_server` before the gRPC server starts."""

    def __init__(
        self,
        *,
        node_id: int,
        voters: Mapping[int, tuple[str, int]],
        listen: tuple[str, int],
        directory: Path,
        disk: Disk,
        clock: Clock,
        cluster_id: str = "",
        config: ControllerConfig | None = None,
        tls: MutualTls | None = None,
        timings: RaftTimings | None = None,
        die: Callable[[str], None] = exit_process,
        ask_voter: AskVoter | None = None,
    ) -> None:
        self._clock = clock
        self._cluster_id = cluster_id
        self._config = config or ControllerConfig()
        self._die = die
        self.metadata = MetadataLog(
            node_id=node_id,
            voters=voters,
            listen=listen,
            directory=directory,
            disk=disk,
            clock=clock,
            cluster_id=cluster_id,
            tls=tls,
            timings=timings,
            die=die,
        )
        self.service = ControllerService(self.metadata, self._config, clock, ask_voter)
        self._duty: asyncio.Task[None] | None = None
        self.metadata.on_role_change(self._role_changed)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        controller_pb2_grpc.add_ControllerServicer_to_server(self.service, server)

    async def start(self) -> None:
        """Raises MetadataLogUnusable, PortInUse, OSError."""
        await self.metadata.start()

    async def stop(self) -> None:
        self.service.stop()
        duty = self._duty
        self._role_changed(False)
        if duty is not None:
            await asyncio.gather(duty, return_exceptions=True)
        await self.metadata.stop()

    @property
    def is_active(self) -> bool:
        """Leads, and has begun its duties."""
        try:
            self.service.require_duties()
        except NotController:
            return False
        return True

    @property
    def leader_id(self) -> int:
        return self.metadata.leader_id

    # ---- the duties -----------------------------------------------------------------------------------------------------------

    def _role_changed(self, active: bool) -> None:
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.cancel()
        self.service.end()
        if active:
            self._duty = asyncio.create_task(self._serve_term(self.metadata.term), name=f"controller-{self.metadata.term}")

    async def _serve_term(self, term: int) -> None:
        try:
            duties = await self._take_office(term)
            while True:
                await self._clock.sleep(self._config.tick_interval_ms / 1000)
                await self._tick(duties)
        except NotController:
            log.info("controller_term_over", term=term)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("controller_duties_failed", term=term)
            self._die(f"the active controller failed: {error}")

    async def _take_office(self, term: int) -> ActiveController:
        duties = ActiveController(self.metadata.state, self._config, self._clock.monotonic())
        cluster_id = self._cluster_id or self.metadata.state.cluster_id or str(self._clock.uuid())
        plan = duties.take_office(self.metadata.node_id, cluster_id, dict(INITIAL_FEATURES))
        for command in plan.commands(term):
            while True:
                try:
                    result = await self.metadata.propose(command.SerializeToString(deterministic=True))
                    break
                except NotController:
                    raise
                except KafkaError as error:
                    log.warning("controller_take_office_retry", term=term, error=str(error))
                    if self.metadata.state.controller_epoch == term:
                        result = None
                        break
                    await self._clock.sleep(RETRY_S)
            if result is not None and result.error not in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION):
                raise NotController(self.metadata.leader_id)
        duties = ActiveController(self.metadata.state, self._config, self._clock.monotonic())
        self.service.begin(duties, term)
        log.info("controller_active", term=term, cluster=self.metadata.state.cluster_id, index=self.metadata.applied_index)
        return duties

    async def _tick(self, duties: ActiveController) -> None:
        """Errors of the quorum (no majority at the moment) end nothing: the next tick plans again from what is applied then."""
        async with self.service.planning:
            self.service.require_duties()
            plan = duties.tick(self._clock.monotonic())
            if not plan:
                return
            log.info("controller_plan", reason=plan.reason, operations=len(plan.operations))
            try:
                await self.service.carry_out(plan)
            except NotController:
                raise
            except KafkaError as error:
                log.warning("controller_plan_unfinished", reason=plan.reason, error=str(error))
