"""Runs one scenario on a cluster of real processes: load, inject faults, end them, require progress, stop,
read, check.

The order matters:

1. The harness starts three or five nodes with fault points, on hosts and disks of their own if the scenario
   cuts networks or fills disks, creates the topics and starts the workload.  The scenario begins when every
   transactional process has committed.
2. The scenario injects its fault, as often as fits into `seconds`, and records what it observes.
3. Faults end: every node runs, is ready, and every partition has all its replicas in sync again.
4. Progress: every transactional process commits once more within a bound.  A cluster that is safe because it
   does nothing fails here.
5. The workload stops, and no transaction may stay open: a hanging transaction blocks read_committed readers
   for ever.
6. The harness reads all partitions from beginning to end, once near each replica, and checks the history.
7. Every node stops cleanly on SIGTERM; then the harness compares the replicas' files, byte by byte.

In every case, no process is left behind, and history, report and table are written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import grpc

from ...client.administration.admin import Admin
from ...client.connecting.metadata import PartitionMetadata
from ...processes.local_cluster import LocalCluster, LocalClusterError, LocalNode, OtherVersion
from ...proto.admin_pb2 import StatusReply
from ...runtime import logs
from ...wire.errors import KafkaError
from ..checks import archive
from ..checks.checker import check
from ..checks.history import History, Op, Partition
from ..load.librdkafka import available
from ..load.processes import Plan
from ..load.progress import Commit
from ..load.workload import FinalRead, Workload
from ..machine.lagging_names import MovingHosts
from ..machine.network_lab import NetworkLab
from ..machine.small_disks import SmallDisks
from ..machine.undo import MissingRight
from .node_logs import count_logs
from .outcome import Recovery, RunOutcome
from .replicas import compare_replicas
from .timed_kills import FaultInjectionError, InjectedFault

log = logs.get(__name__)

READY_TIMEOUT_S: Final = 60.0
FIRST_COMMIT_TIMEOUT_S: Final = 30.0
RECOVERY_TIMEOUT_S: Final = 30.0
PROGRESS_TIMEOUT_S: Final = 30.0
RECHECK_INTERVAL_S: Final = 0.1
SECOND_FOLDER: Final = "data-b"

# Short sessions detect failures soon, so that a short run shows what a long one would.  Two cores carry all
# nodes and the workload: even shorter sessions would fence nodes that are only slow.
QUICK: Final[Mapping[str, object]] = {
    "broker.session.timeout.ms": 2500,
    "controller.quorum.election.timeout.ms": 500,
    "broker.heartbeat.interval.ms": 300,
    "replica.lag.time.max.ms": 4000,
    "transaction.state.log.num.partitions": 4,
    "offsets.topic.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "controlled.shutdown.timeout.ms": 4000,
}

Say = Callable[[str], None]


class Scenario(Protocol):
    """The faults of a run.  The harness may call `inject` several times in one run."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, object]: ...
    @property
    def cuts_network(self) -> bool:
        """Whether every node needs a host of its own (`run.lab`)."""

    @property
    def names_lag_s(self) -> float:
        """How long lookups of a host's name return its old address (`run.lab.move`); 0: nodes announce
        addresses, not names."""

    @property
    def disk_bytes(self) -> int:
        """The size of each node's own disk; 0: the nodes use the machine's."""

    @property
    def data_folders(self) -> int:
        """How many data folders each node has: 1, or 2 with `SECOND_FOLDER`."""

    @property
    def plan(self) -> Plan | None:
        """Its own workload; None: the usual one."""

    async def inject(self, run: Run) -> None:
        """Injects the fault once and ends it; the scenario states its own conditions with
        `run.outcome.require`."""


@dataclass(slots=True)
class Run:
    """The cluster, workload and outcome of a run, for the scenario."""

    cluster: LocalCluster
    workload: Workload
    history: History
    outcome: RunOutcome
    chance: random.Random
    say: Say
    lab: NetworkLab = field(default_factory=lambda: NetworkLab(0))
    rounds: int = 0
    until: float = 0.0
    decided: list[InjectedFault] = field(default_factory=list)
    """Kills after which the transaction that was being committed must be visible, whatever answer its client
    received."""
    final: FinalRead = field(default_factory=lambda: FinalRead({}, {}))

    def now(self) -> float:
        return self.cluster.clock.monotonic()

    async def load(self, seconds: float) -> None:
        """Lets the workload go on undisturbed."""
        await self.cluster.clock.sleep(seconds)

    async def recovery(
        self,
        fault: str,
        kill: InjectedFault,
        affected: str,
        is_affected: Callable[[Commit], bool],
        *,
        restart: bool = True,
    ) -> Recovery:
        """Waits for the next commits after a kill, starts the node again and waits until it is ready; records
        the times."""
        begin = kill.killed_at_monotonic
        next_affected, next_any = await asyncio.gather(
            self.workload.progress.first(
                lambda c: c.acknowledged > begin and is_affected(c), RECOVERY_TIMEOUT_S
            ),
            self.workload.progress.first(lambda c: c.acknowledged > begin, RECOVERY_TIMEOUT_S),
        )
        back_s = await self.restart(self.cluster.node(kill.node_id)) if restart else None
        recovery = Recovery(
            fault,
            kill.node_id,
            affected,
            next_affected.acknowledged - begin if next_affected is not None else None,
            next_any.acknowledged - begin if next_any is not None else None,
            back_s,
        )
        self.outcome.recoveries.append(recovery)
        self.outcome.require(
            f"commits go on after: {fault}",
            next_affected is not None,
            f"{recovery.affected_s:.2f} s"
            if recovery.affected_s is not None
            else f"not within {RECOVERY_TIMEOUT_S:g} s",
        )
        return recovery

    async def restart(self, node: LocalNode) -> float:
        """Starts a node and waits until it is ready; returns the seconds."""
        begin = self.now()
        await node.start()
        await node.wait_ready(READY_TIMEOUT_S)
        return self.now() - begin

    def require_silence(self, name: str, begin: float, end: float) -> None:
        """Requires that no operation begun after `begin` was acknowledged before `end`."""
        said_yes = self.workload.progress.between(begin, end)
        detail = f"{len(said_yes)} operations were, the first to {said_yes[0].client}" if said_yes else ""
        self.outcome.require(name, not said_yes, detail)

    @property
    def session_s(self) -> float:
        """How long a node may be silent before it is fenced."""
        return int(str(self.cluster.settings["broker.session.timeout.ms"])) / 1000

    async def leaders(self) -> dict[Partition, int]:
        """The leaders of the workload's partitions now."""
        views = await self.partition_views()
        return {partition: view.leader for partition, view in views.items()}

    async def partition_views(self) -> dict[Partition, PartitionMetadata]:
        plan = self.workload.plan
        async with Admin(
            self.cluster.bootstrap,
            client_id="chaos-harness",
            clock=self.cluster.clock,
            security=self.cluster.security,
        ) as admin:
            described = await admin.describe_topics([plan.topic, plan.derived_topic], config=False)
        return {(topic.name, view.partition): view for topic in described for view in topic.partitions}

    async def wait_ready(self) -> None:
        """Waits until every node is ready.  Raises LocalClusterError when one is not in time."""
        await asyncio.gather(*(node.wait_ready(READY_TIMEOUT_S) for node in self.cluster.nodes))

    async def wait_in_sync(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits until every partition has all its replicas in sync.  Raises LocalClusterError when that takes
        too long."""
        deadline = self.now() + timeout_s
        while True:
            statuses = await asyncio.gather(*(_status(node) for node in self.cluster.nodes))
            known = [status for status in statuses if status is not None]
            behind = sum(status.under_replicated for status in known)
            if len(known) == len(statuses) and behind == 0 and all(status.ready for status in known):
                return
            if self.now() >= deadline:
                raise LocalClusterError(
                    f"{behind} partitions have not all replicas in sync {timeout_s:g} s after the "
                    "cluster was healed, and "
                    f"{len(statuses) - len(known)} nodes do not answer: see the logs in "
                    f"{self.cluster.directory}"
                )
            await asyncio.sleep(RECHECK_INTERVAL_S)


async def _status(node: LocalNode) -> StatusReply | None:
    if not node.running:
        return None
    try:
        return await node.status()
    except grpc.aio.AioRpcError:
        return None  # it is starting or busy: the caller asks again


async def run_scenario(
    scenario: Scenario,
    directory: Path,
    seconds: float = 20.0,
    seed: int = 0,
    *,
    nodes: int = 3,
    plan: Plan | None = None,
    say: Say = lambda _: None,
    settings: Mapping[str, object] | None = None,
    version: OtherVersion | None = None,
    secured: bool = False,
) -> RunOutcome:
    """Runs a scenario on 3 or 5 nodes for about `seconds` of load and returns the outcome.

    Every partition is on every node, and more than half of them must be in sync for an acknowledgement.

    `directory` must be new or empty: it gets the nodes' folders, history.jsonl, final.json, report.json and
    table.txt.  `seed` fixes what the workload and the scenario choose, not the machine's timing.
    `version`: another version of `tidegate`, with which the nodes are started.  `secured`: nodes speak to
    each other by mutual TLS, and clients log in over TLS (SCRAM-SHA-512) and need rights (ACLs).  Raises only
    when the run could not be made at all.
    """
    outcome = RunOutcome(scenario.name, seed, seconds, directory, nodes, secured=secured)
    try:
        async with AsyncExitStack() as stack:
            lab = stack.enter_context(_lab(scenario, nodes)) if scenario.cuts_network else None
            everything = {**QUICK, **everywhere(nodes), **scenario.settings, **(settings or {})}
            home = directory.absolute() / "cluster"
            if scenario.data_folders > 1:
                everything["log.dirs"] = [
                    f"{home}/node-{{node.id}}/{name}" for name in ("data", SECOND_FOLDER)
                ]
            cluster = LocalCluster(home, nodes, everything, fault_points=True, hosts=lab, with_users=secured)
            stack.callback(cluster.release)
            for node in cluster.nodes:
                node.version = version
            run = _prepared(cluster, scenario, stack, outcome, plan, say)
            if lab is not None:
                run.lab = lab
            await _run_and_stop(scenario, run, seconds)
    except MissingRight as error:
        outcome.require("the machine can do what the scenario needs", False, str(error))
        outcome.write()
    return outcome


def _lab(scenario: Scenario, nodes: int) -> NetworkLab:
    return MovingHosts(nodes, scenario.names_lag_s) if scenario.names_lag_s else NetworkLab(nodes)


def everywhere(nodes: int) -> dict[str, object]:
    """Settings for replicas on all nodes, with more than half of them required in sync."""
    majority = nodes // 2 + 1
    internal = {
        f"{topic}.{key}": value
        for topic in ("offsets.topic", "transaction.state.log")
        for key, value in (("replication.factor", nodes), ("min.isr", majority))
    }
    return {"default.replication.factor": nodes, "min.insync.replicas": majority, **internal}


def _prepared(
    cluster: LocalCluster,
    scenario: Scenario,
    stack: AsyncExitStack,
    outcome: RunOutcome,
    plan: Plan | None,
    say: Say,
) -> Run:
    if scenario.disk_bytes:
        stack.enter_context(SmallDisks([node.data_path for node in cluster.nodes], scenario.disk_bytes))
    plan = replace(
        plan or scenario.plan or Plan(), replicas=outcome.nodes, min_in_sync=outcome.nodes // 2 + 1
    )
    if plan.librdkafka and not available():
        say("librdkafka's clients are left out: `pip install confluent-kafka` brings them")
        plan = replace(plan, librdkafka=False)
    history = History(cluster.clock.monotonic)
    workload = Workload(cluster.bootstrap, history, plan, cluster.clock, outcome.seed, cluster.security)
    return Run(cluster, workload, history, outcome, random.Random(f"{outcome.seed}/{scenario.name}"), say)


async def _run_and_stop(scenario: Scenario, run: Run, seconds: float) -> None:
    """The run, then clean stops, then the comparison of the replicas; writes the results."""
    outcome, workload = run.outcome, run.workload
    try:
        await _run(scenario, run, seconds)
    except (LocalClusterError, FaultInjectionError, KafkaError, grpc.aio.AioRpcError) as error:
        outcome.require("the run came to its end", False, str(error))
    finally:
        run.lab.heal()
        await workload.kill()
        run.say("stopping the nodes")
        codes = await run.cluster.down()
    outcome.require(
        "every node stops cleanly on SIGTERM", all(code == 0 for code in codes.values()), _codes(codes)
    )
    if outcome.passed:
        differences, compared = await asyncio.to_thread(
            compare_replicas, run.cluster, workload.plan.all_partitions
        )
        outcome.require("all replicas hold the same bytes", not differences, "; ".join(differences[:3]))
        outcome.figures["replica_bytes_compared"] = compared
    outcome.disturbances = workload.progress.disturbances
    outcome.log_lines = count_logs(node.log_path for node in run.cluster.nodes)
    archive.write(outcome.directory, run.history.ops(), run.final.logs, run.final.offsets)
    outcome.write()


async def _run(scenario: Scenario, run: Run, seconds: float) -> None:
    workload, outcome, history = run.workload, run.outcome, run.history
    run.say(f"starting {outcome.nodes} nodes")
    await run.cluster.up(READY_TIMEOUT_S)
    await workload.prepare()
    workload.start()
    begin = run.now()
    if not await _every_client_commits(run, begin, "every client commits at first", FIRST_COMMIT_TIMEOUT_S):
        return  # a cluster that does not work needs no fault
    loaded = run.now()
    run.until = loaded + seconds
    while run.rounds == 0 or run.now() + (run.now() - loaded) / run.rounds < run.until:
        run.rounds += 1
        run.say(f"{scenario.name}: round {run.rounds}")
        await scenario.inject(run)
        await run.wait_in_sync()
    await run.load(max(0.0, run.until - run.now()))
    run.say("healed: every client must commit again")
    await _heal(run)
    await _every_client_commits(run, run.now(), "every client commits after healing", PROGRESS_TIMEOUT_S)
    end = run.now()
    await workload.stop()
    outcome.require(
        "no client is broken", not workload.progress.defects, "; ".join(workload.progress.defects[:3])
    )
    run.say("looking for open transactions")
    rest = await workload.quiesce()
    outcome.require("0 transactions hang", not rest.hanging, "; ".join(rest.hanging[:3]))
    run.say("reading everything")
    run.final = found = await workload.final_read()
    names = ", ".join(f"{topic}-{number}" for topic, number in found.incomplete)
    outcome.require("every partition can be read to its end", not found.incomplete, names)
    if not found.incomplete:
        unequal = await workload.read_near([f"rack-{node.id}" for node in run.cluster.nodes], found)
        outcome.require("readers near every replica read the same", not unequal, "; ".join(unequal[:3]))
    run.say("checking the history")
    report = await asyncio.to_thread(check, history.ops(), found.logs, found.offsets)
    outcome.judge(report)
    for kill in run.decided:
        outcome.require(
            "the commit that was decided before the kill is visible",
            *decided_is_visible(kill, history.ops(), found),
        )
    outcome.require(
        "there was something to check",
        report.counts.records_final > 0,
        f"{report.counts.records_final} records",
    )
    commits = len(workload.progress.commits)
    outcome.figures |= {
        "rounds": run.rounds,
        "commits_per_second": commits / (end - begin),
        "longest_pause_s": workload.progress.longest_pause_s(loaded, end),
        "longest_client_pause_s": workload.progress.longest_client_pause_s(loaded, end),
        "zombies": workload.progress.zombies,
        "operations_disturbed": workload.progress.disturbed,
    }


def decided_is_visible(kill: InjectedFault, history: Sequence[Op], found: FinalRead) -> tuple[bool, str]:
    """Whether the transaction whose PREPARE_COMMIT preceded the kill is wholly in the final read, and a
    sentence about it.

    It is the last one of its id whose commit left before the kill: the next could not begin while its
    coordinator was dead.
    """
    ops = [
        op
        for op in history
        if op.transactional_id == kill.transactional_id
        and op.ending is not None
        and op.ending <= kill.killed_at_monotonic
    ]
    if not ops:
        return False, f"the history has no commit of {kill.transactional_id} before the kill"
    op = max(ops, key=lambda op: op.index)
    sends = list(op.sends)
    read = {partition: {value for _, value in records} for partition, records in found.logs.items()}
    there = sum(1 for send in sends if send.value in read.get(send.partition, ()))
    after_s = op.completed - kill.killed_at_monotonic
    detail = (
        f"{there} of the {len(sends)} records of {op.transactional_id} #{op.index}; "
        f"its client got the outcome {op.outcome}, {after_s:+.2f} s from the kill"
    )
    return there == len(sends), detail


async def _every_client_commits(run: Run, since: float, what: str, timeout_s: float) -> bool:
    """Whether every transactional process begins and commits a transaction after `since`; records the
    result."""
    expected = {name: frozenset({name}) for name in (*run.workload.writer_ids, *run.workload.librdkafka_ids)}
    if run.workload.transform_ids:
        # The group decides which member has partitions: some member must commit.
        expected["the consume-transform-produce job"] = frozenset(run.workload.transform_ids)

    def first(ids: frozenset[str]) -> Awaitable[Commit | None]:
        return run.workload.progress.first(
            lambda c: c.transactional_id in ids and c.invoked >= since, timeout_s
        )

    found = await asyncio.gather(*(first(ids) for ids in expected.values()))
    missing = [name for name, commit in zip(expected, found, strict=True) if commit is None]
    took = max((commit.acknowledged - since for commit in found if commit is not None), default=0.0)
    detail = f"{took:.2f} s" if not missing else f"not within {timeout_s:g} s: {', '.join(missing)}"
    run.outcome.require(what, not missing, detail)
    return not missing


async def _heal(run: Run) -> None:
    run.lab.heal()
    begin = run.now()
    for node in run.cluster.nodes:
        node.resume()
        if not node.running:
            await node.start()
    await run.wait_ready()
    await run.wait_in_sync()
    run.outcome.figures["healed_after_s"] = run.now() - begin


def _codes(codes: Mapping[int, int | None]) -> str:
    return ", ".join(f"node {node_id}: {code}" for node_id, code in sorted(codes.items()) if code != 0)
