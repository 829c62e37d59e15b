"""`tidegate demo`: the whole main job, from three empty nodes to a table of checks.

Order: cluster up -> load and transform side by side, a coordinator killed between PREPARE_COMMIT and its
markers, then the active controller -> both nodes back -> Spark -> checks -> table, result.json and
timeline.html -> every process stopped, also after an error.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...client.administration.admin import Admin
from ...client.administration.descriptions import NewTopic
from ...processes.local_cluster import LocalCluster, LocalNode
from ...runtime import logs
from ...runtime.clock import Clock, SystemClock
from ...runtime.disk import RealDisk
from ..run.timed_kills import (
    InjectedFault,
    kill_active_controller,
    kill_coordinator_mid_commit,
    wait_completed,
)
from .backfill import Backfill, run_backfill
from .checks import Check, check_all
from .flights import Flight, load_flights
from .load import Journal, Loader, transactional_id
from .timeline import Kill, Story, timeline
from .transform import LateArrivals

log = logs.get(__name__)

FLIGHTS: Final = "flights"
LATE: Final = "late-arrivals"
FLIGHT_PARTITIONS: Final = 12
LATE_PARTITIONS: Final = 6
FIRST_KILL_AT: Final = 0.25  # of the records
SECOND_KILL_AT: Final = 0.6
DOWN_S: Final = 3.0  # how long a killed node stays away
RECOVERY_TIMEOUT_S: Final = 60.0
# The controller fences a broker that is silent for this long: the larger part of the time to recover from a
# kill.
SETTINGS: Final[dict[str, object]] = {
    "broker.session.timeout.ms": 2500,
    "controller.quorum.election.timeout.ms": 500,
    "broker.heartbeat.interval.ms": 500,
    "transaction.state.log.num.partitions": 8,
    "offsets.topic.num.partitions": 8,
}


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill: its target, and the time until the affected producer, and any producer, had its next commit
    acknowledged."""

    what: str
    node: int
    seconds_to_commit: float
    seconds_affected: float


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo writes to result.json."""

    checks: list[Check]
    recoveries: list[Recovery]
    transactions: int
    aborted_on_purpose: int
    repeated: int
    load_seconds: float
    spark_seconds: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and len(self.recoveries) == 2


class DemoFailed(Exception):
    """The job failed; the message says where."""


class Demo:
    """One run.  `result` is the folder for everything it leaves behind."""

    def __init__(self, result: Path, flights: list[Flight], console: Console, clock: Clock) -> None:
        self._result = result
        self._flights = flights
        self._console = console
        self._clock = clock
        self._loaded = 0
        self._load_moved = asyncio.Event()
        self._story = Story(clock.monotonic(), ())

    async def run(self) -> Result:
        cluster = LocalCluster(self._result / "cluster", nodes=3, settings=SETTINGS, fault_points=True)
        try:
            with self._console.status("starting three nodes"):
                await cluster.up()
                await self._create_topics(cluster)
            self._story = Story(self._clock.monotonic(), [node.id for node in cluster.nodes])
            journal, recoveries, load_s = await self._load(cluster)
            with self._console.status("Spark reads both topics, read_committed, over gRPC"):
                started = self._clock.monotonic()
                found = await self._backfill(cluster)
                self._story.ended_at = self._clock.monotonic()
                spark_s = self._story.ended_at - started
        finally:
            await cluster.down()
        checks = check_all(self._flights, journal, found)
        self._story.steps, self._story.read = found.steps, found.read
        RealDisk().write_atomic(
            self._result / "timeline.html", timeline(self._story, journal, checks).encode()
        )
        return Result(
            checks,
            recoveries,
            len(journal.committed),
            journal.aborted_on_purpose,
            journal.failures,
            load_s,
            spark_s,
        )

    async def _create_topics(self, cluster: LocalCluster) -> None:
        config = {"min.insync.replicas": "2"}
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics(
                [NewTopic(FLIGHTS, FLIGHT_PARTITIONS, 3, config), NewTopic(LATE, LATE_PARTITIONS, 3, config)]
            )

    async def _backfill(self, cluster: LocalCluster) -> Backfill:
        endpoints = ",".join(node.grpc_address for node in cluster.nodes)
        return await asyncio.to_thread(run_backfill, endpoints, FLIGHTS, LATE, self._result, self._clock)

    # --- load, transform and kills --------------------------------------------------------------------------

    async def _load(self, cluster: LocalCluster) -> tuple[Journal, list[Recovery], float]:
        total = len(self._flights)
        started = self._clock.monotonic()
        with _progress(self._console) as progress:
            load_bar = progress.add_task("flights written", total=total)
            transform_bar = progress.add_task("flights transformed", total=total)
            loader = Loader(
                cluster.bootstrap,
                FLIGHTS,
                self._flights,
                self._clock,
                lambda count: self._on_load(progress, load_bar, count),
            )
            transform = LateArrivals(
                cluster.bootstrap,
                FLIGHTS,
                LATE,
                total,
                self._clock,
                lambda count: self._on_transform(progress, transform_bar, count),
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(loader.run())
                group.create_task(transform.run())
                kills = group.create_task(self._kills(cluster, loader.journal, total, progress.console.print))
        return loader.journal, kills.result(), self._clock.monotonic() - started

    def _on_load(self, progress: Progress, bar: TaskID, count: int) -> None:
        self._loaded += count
        self._load_moved.set()
        progress.advance(bar, count)

    def _on_transform(self, progress: Progress, bar: TaskID, count: int) -> None:
        self._story.transformed.append((self._clock.monotonic(), count))
        progress.advance(bar, count)

    async def _kills(
        self, cluster: LocalCluster, journal: Journal, total: int, say: Callable[[str], None]
    ) -> list[Recovery]:
        await self._until_loaded(total * FIRST_KILL_AT)
        producer = 1
        kill = await kill_coordinator_mid_commit(cluster, transactional_id(producer))
        say(f"  killed node {kill.node_id}: it coordinated a commit, between PREPARE_COMMIT and the markers")
        await wait_completed(cluster, kill)
        first = await self._recovery("transaction coordinator, mid-commit", journal, kill, producer)
        await self._restart(cluster.node(kill.node_id), kill, first)
        await self._until_loaded(total * SECOND_KILL_AT)
        kill = await kill_active_controller(cluster)
        say(f"  killed node {kill.node_id}: it was the active controller")
        await cluster.active_controller(RECOVERY_TIMEOUT_S)
        second = await self._recovery("active controller", journal, kill, None)
        await self._restart(cluster.node(kill.node_id), kill, second)
        return [first, second]

    async def _until_loaded(self, records: float) -> None:
        while self._loaded < records:
            self._load_moved.clear()
            await self._load_moved.wait()

    async def _recovery(
        self, what: str, journal: Journal, kill: InjectedFault, producer: int | None
    ) -> Recovery:
        """Waits for the next commits after the kill; with a producer given, for one of that producer, else
        for one of each."""
        deadline = self._clock.monotonic() + RECOVERY_TIMEOUT_S
        producers = [producer] if producer is not None else sorted({t.producer for t in journal.committed})
        while True:
            found = [journal.first_commit_after(kill.killed_at_monotonic, number) for number in producers]
            times = [moment for moment in found if moment is not None]
            if len(times) == len(producers):
                of_any = journal.first_commit_after(kill.killed_at_monotonic) or max(times)
                return Recovery(
                    what,
                    kill.node_id,
                    of_any - kill.killed_at_monotonic,
                    max(times) - kill.killed_at_monotonic,
                )
            if self._clock.monotonic() >= deadline:
                raise DemoFailed(
                    f"{what}: no commit of every producer within {RECOVERY_TIMEOUT_S:g} s after the kill"
                )
            self._load_moved.clear()
            try:
                await asyncio.wait_for(self._load_moved.wait(), deadline - self._clock.monotonic())
            except TimeoutError:
                continue

    async def _restart(self, node: LocalNode, kill: InjectedFault, recovery: Recovery) -> None:
        await self._clock.sleep(DOWN_S)
        await node.start()
        await node.wait_ready(RECOVERY_TIMEOUT_S)
        killed_at = kill.killed_at_monotonic
        recovered_at = killed_at + recovery.seconds_affected
        self._story.kills.append(
            Kill(node.id, recovery.what, killed_at, recovered_at, self._clock.monotonic())
        )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _report(console: Console, result: Result, folder: Path) -> None:
    table = Table(title="What was checked", title_justify="left")
    for name in ("check", "violations", "over", ""):
        table.add_column(name, justify="right" if name in ("violations", "over") else "left")
    for check in result.checks:
        verdict = "[green]ok[/]" if check.passed else f"[red]FAILED[/] {check.example}"
        table.add_row(check.name, f"{check.violations:,}", f"{check.compared:,}", verdict)
    console.print(table)
    recovery = Table(title="Time to recover from each kill (seconds)", title_justify="left")
    for name in ("killed", "node", "next commit", "next commit of those hit"):
        recovery.add_column(name, justify="left" if name == "killed" else "right")
    for each in result.recoveries:
        recovery.add_row(
            each.what, str(each.node), f"{each.seconds_to_commit:.2f}", f"{each.seconds_affected:.2f}"
        )
    console.print(recovery)
    console.print(
        f"{result.transactions:,} transactions committed, {result.aborted_on_purpose:,} aborted on purpose, "
        f"{result.repeated:,} repeated after a kill; load {result.load_seconds:.1f} s, Spark "
        f"{result.spark_seconds:.1f} s"
    )
    console.print(
        f"Results: {folder}/result.json and {folder}/aggregates.parquet; node logs: {folder}/cluster; what "
        f"happened when: {folder}/timeline.html"
    )


def demo(
    result: Annotated[
        Path, typer.Option(help="Folder for results and logs; what an earlier demo left there is removed.")
    ] = Path("demo-result"),
    flights: Annotated[
        int, typer.Option(min=20_000, help="How many flights; fewer than all for a quick look.")
    ] = 336_776,
) -> None:
    """Run the main job on three nodes, with two kills, and check every record."""
    logs.configure(level="WARNING")
    console = Console()
    if (result / "result.json").exists() or (result / "cluster").exists():
        shutil.rmtree(result)
    disk = RealDisk()
    folder = result.absolute()
    disk.make_directory(folder)
    with console.status("reading the data set"):
        rows = load_flights(flights)
    try:
        found = asyncio.run(Demo(folder, rows, console, SystemClock()).run())
    except* DemoFailed as failures:
        for failure in failures.exceptions:
            console.print(f"[red]the demo failed:[/] {failure}")
        raise SystemExit(1) from None
    disk.write_atomic(
        folder / "result.json", json.dumps({"passed": found.passed, **asdict(found)}, indent=2).encode()
    )
    _report(console, found, folder)
    raise SystemExit(0 if found.passed else 1)
