"""One controller's terms as the active controller: begins and ends the planner of each.

A node becomes the active controller in this order:
1. it applies the no-op of its own term, so its state has everything that was committed before
   (`MetadataLog`);
2. it proposes its own name as controller, and the id of a cluster that has none yet
   (`ControllerPlanner.begin_term`);
3. when these commands are applied, a new planner begins: the service answers, timers run, every session
   starts whole. When the node stops being active, or proposes into another term, the planner of that term
   ends and nothing of it is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...runtime import logs
from ...runtime.tasks import spawn
from ...wire.errors import ErrorCode, KafkaError
from ..planning.plan import Plan
from ..planning.planner import ControllerConfig, ControllerPlanner
from ..state.model import INITIAL_FEATURES
from .metadata_log import MetadataLog, NotController
from .pipeline import CommandFails, PlanPipeline, Proposed
from .service import ControllerService

if TYPE_CHECKING:
    from ...runtime.clock import Clock

log = logs.get(__name__)

RETRY_S = 0.2


class ControllerLeadership:
    """Runs a planner in each term in which `metadata` leads."""

    def __init__(
        self,
        metadata: MetadataLog,
        service: ControllerService,
        config: ControllerConfig,
        clock: Clock,
        cluster_id: str,
        die: Callable[[str], None],
    ) -> None:
        self._metadata = metadata
        self._service = service
        self._config = config
        self._clock = clock
        self._cluster_id = cluster_id
        self._die = die
        self._term_task: asyncio.Task[None] | None = None
        self._outcome_tasks: set[asyncio.Task[None]] = set()
        metadata.on_role_change(self._role_changed)

    async def close(self) -> None:
        term_task = self._term_task
        self._role_changed(False)
        for outcome_task in self._outcome_tasks:
            outcome_task.cancel()
        await asyncio.gather(
            *self._outcome_tasks, *([] if term_task is None else [term_task]), return_exceptions=True
        )

    def _role_changed(self, active: bool) -> None:
        term_task, self._term_task = self._term_task, None
        if term_task is not None:
            term_task.cancel()
        self._service.end()
        if active:
            term = self._metadata.term
            self._term_task = spawn(self._serve_term(term), f"controller-{term}", self._failed)

    async def _serve_term(self, term: int) -> None:
        try:
            planner, pipeline = await self._begin_term(term)
            while True:
                await self._clock.sleep(self._config.tick_interval_ms / 1000)
                self._tick(planner, pipeline)
        except NotController:
            log.info("controller_term_over", term=term)

    def _failed(self, error: BaseException) -> None:
        log.failure("controller_term_failed", error, term=self._metadata.term)
        self._die(f"the active controller failed: {error}")

    async def _begin_term(self, term: int) -> tuple[ControllerPlanner, PlanPipeline]:
        planner = ControllerPlanner(self._metadata.state, self._config, self._clock.monotonic())
        cluster_id = self._cluster_id or self._metadata.state.cluster_id or str(self._clock.uuid())
        plan = planner.begin_term(
            self._metadata.node_id, cluster_id, str(self._clock.uuid()), dict(INITIAL_FEATURES)
        )
        pipeline = PlanPipeline(self._metadata, term)
        for command in plan.commands(term):
            while True:
                try:
                    result = await pipeline.outcome(pipeline.propose(command))
                    break
                except (NotController, CommandFails):
                    raise
                except KafkaError as error:
                    log.warning("controller_take_office_retry", term=term, error=str(error))
                    if self._metadata.state.controller_epoch == term:
                        result = None
                        break
                    await self._clock.sleep(RETRY_S)
            if result is not None and result.error not in (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION):
                raise NotController(self._metadata.leader_id)
        if asyncio.current_task() is not self._term_task:
            # the end of the term cancelled an await that had finished, so nothing was raised
            raise NotController(self._metadata.leader_id)
        planner = ControllerPlanner(
            self._metadata.state, self._config, self._clock.monotonic(), lambda: pipeline.state
        )
        self._service.begin(planner, pipeline)
        log.info(
            "controller_active",
            term=term,
            cluster=self._metadata.state.cluster_id,
            index=self._metadata.applied_index,
        )
        return planner, pipeline

    def _tick(self, planner: ControllerPlanner, pipeline: PlanPipeline) -> None:
        """Awaits nothing, so no client can delay a tick: too long a time between two ticks means that this
        process did not run. While the node is not active (a flush of the journal hangs) the tick does
        nothing; the end of the term cancels its task."""
        try:
            self._service.require_planner()
            now = self._clock.monotonic()
            plan = planner.tick(now)
            if not plan.operations:
                plan = planner.end_tokens(now, self._clock.wall_ms())
            if not plan.operations:
                plan = planner.end_pins(self._clock.steady_ms())
            if not plan.operations:
                return
            for operation in plan.operations:
                if operation.HasField("fence_broker"):
                    node_id = operation.fence_broker.node_id
                    silent_s = self._clock.monotonic() - planner.sessions.by_id[node_id].heard_at
                    log.info("broker_session_expired", node=node_id, silent_ms=int(silent_s * 1000))
            log.info("controller_plan", reason=plan.reason, operations=len(plan.operations))
            proposed = pipeline.propose_in_order(plan.commands(pipeline.term))
        except KafkaError as error:
            log.debug("controller_tick_skipped", error=str(error))
            return
        outcome_task = spawn(self._await_outcome(plan, proposed), "controller-plan", self._failed)
        self._outcome_tasks.add(outcome_task)
        outcome_task.add_done_callback(self._outcome_tasks.discard)

    async def _await_outcome(self, plan: Plan, proposed: list[Proposed]) -> None:
        """After an error of the quorum (no majority at the moment) a later tick plans again on the state
        applied by then."""
        try:
            await self._service.outcome(plan, proposed)
        except KafkaError as error:
            log.warning("controller_plan_unfinished", reason=plan.reason, error=str(error))
