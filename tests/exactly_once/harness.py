"""One run after another: Spark writes while something fails, is run again until it has done its work, and the
watcher's records are compared with the input's answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidegate.client import Admin, LocalCluster, NewTopic, Producer
from tidegate.client.connecting.cluster import Cluster, CoordinatorKind

from .cuts_taken import CutsTaken
from .faulty_source import FORMAT, OPTION, Fault
from .losing_answers import Decision, LosingAnswers, served
from .spark_process import SparkProcess
from .steps import Step
from .watcher import Seen, Watcher

INPUT, OUTPUT, CONTROL_OUTPUT = "input", "output", "control"
PARTITIONS: Final = 3
INPUT_PARTITIONS: Final = 2
INPUT_RECORDS: Final = 300
BATCH_RECORDS: Final = 100
KEYS: Final = 20
ROWS: Final = 400
TASKS: Final = 4
AGAIN_MAX: Final = 6
JOB: Final = "the-job"
DOWN_S: Final = 0.3
READY_S: Final = 60.0
CLUSTER_MASTER: Final = "local-cluster[2,1,700]"
LOCAL_MASTER: Final = "local[2,3]"
SETTINGS: Final[dict[str, object]] = {
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 1,
}


@dataclass(slots=True)
class Verdict:
    """What a run has shown; `wrong` is empty for a good one."""

    step: Step
    run: int
    times: int = 1  # how often the job was run
    records: int = 0
    doubled: int = 0
    missing: int = 0
    cuts: int = 0  # that were read, and how many whole jobs they had
    jobs_in_cuts: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sink:
    """Which connector writes: the product's with its faults, or Spark's own, the control."""

    format: str
    source: str
    topic: str


OURS: Final = Sink(FORMAT, "tidegate", OUTPUT)
CONNECTOR: Final = Sink("kafka", "kafka", CONTROL_OUTPUT)


class Harness:
    """On one cluster; `jars` of Spark's Kafka connector for the control."""

    def __init__(self, folder: Path, cluster: LocalCluster, jars: str, *, is_distributed: bool) -> None:
        self._folder, self._cluster, self._jars = folder, cluster, jars
        self._is_distributed = is_distributed
        self._proxy = LosingAnswers([node.grpc_address for node in cluster.nodes])
        self._proxy_address = ""
        self._spark: SparkProcess | None = None
        self._sessions = 0
        self._master = ""
        self._inputs: list[list[str]] = []
        self._decisions: dict[int, dict[str, Decision]] = {}
        self.watchers = {
            sink.topic: Watcher(cluster.bootstrap, sink.topic, PARTITIONS) for sink in (OURS, CONNECTOR)
        }

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Harness]:
        replicas = min(3, len(self._cluster.nodes))
        async with Admin(self._cluster.bootstrap) as admin:
            topics = [NewTopic(topic, PARTITIONS, replicas) for topic in (OUTPUT, CONTROL_OUTPUT)]
            await admin.create_topics([NewTopic(INPUT, INPUT_PARTITIONS, replicas), *topics])
        await self._fill()
        with served(self._proxy) as self._proxy_address:
            try:
                for watcher in self.watchers.values():
                    await watcher.start()
                yield self
            finally:
                for watcher in self.watchers.values():
                    await watcher.close()
                if self._spark is not None:
                    self._spark.close()

    async def _fill(self) -> None:
        self._inputs = [[] for _ in range(INPUT_PARTITIONS)]
        async with Producer(self._cluster.bootstrap) as producer:
            for number in range(INPUT_RECORDS):
                partition, key = number % INPUT_PARTITIONS, f"k{number * 7 % KEYS}"
                self._inputs[partition].append(key)
                await producer.send_and_wait(INPUT, b"v", key=key.encode(), partition=partition)

    # --- a run ----------------------------------------------------------------------------------------------

    async def run(self, step: Step, number: int, sink: Sink = OURS) -> Verdict:
        """Raises when the job does not end well after some times, or the fault did not happen."""
        folder = self._folder / f"run-{number}"
        folder.mkdir()
        fault = Fault(step.point, step.action, str(folder))
        self._proxy.lose(step.method, {"lose once": 1, "lose all": 10**6}.get(step.action, 0))
        verdict = Verdict(step, number, times=0)
        watcher = self.watchers[sink.topic]
        async with CutsTaken(self._cluster.bootstrap, sink.topic) as cuts:
            errors = await self._until_it_ends_well(verdict, sink, folder, fault)
            self._require_fault(step, folder, errors)
            await watcher.settle()
        seen = watcher.seen[number]
        self._judge(verdict, seen, folder)
        if sink is OURS:
            self._judge_decisions(verdict, seen, folder)
            verdict.wrong += await cuts.torn(number, seen)
            verdict.cuts, verdict.jobs_in_cuts = cuts.count, cuts.inside
        return verdict

    async def _until_it_ends_well(
        self, verdict: Verdict, sink: Sink, folder: Path, fault: Fault
    ) -> list[str]:
        """The errors of the times before."""
        step, number = verdict.step, verdict.run
        errors: list[str] = []
        while True:
            verdict.times += 1
            if verdict.times > AGAIN_MAX:
                raise AssertionError(f"run {number}, {step}: did not end well: {errors}")
            answer = await self._spark_for(step).ask(
                self._command(step, number, sink, folder, fault),
                lambda: self._meanwhile(step, number, folder),
            )
            if answer is None:
                self._spark = None
                continue
            if not answer["error"]:
                return errors
            errors.append(answer["error"].partition("\n")[0][:500])
            if step.action == "lose all":
                self._proxy.lose("", 0)

    def give_up(self) -> None:
        """After a run that did not end: the next one begins with another session."""
        if self._spark is not None:
            self._spark.kill()
            self._spark = None

    def _require_fault(self, step: Step, folder: Path, errors: list[str]) -> None:
        happened = (folder / "taken").exists() if step.point != "none" else True
        if step.method:
            happened = self._proxy.lost > 0 or (step.action == "lose all" and bool(errors))
        assert happened, f"the fault of {step} did not happen"

    def _spark_for(self, step: Step) -> SparkProcess:
        needs_session_of_its_own = step.action == "kill JVM" or not self._is_distributed
        master = LOCAL_MASTER if needs_session_of_its_own else CLUSTER_MASTER
        if self._spark is not None and self._master != master:
            self._spark.close()
            self._spark = None
        if self._spark is None:
            self._sessions += 1
            self._master = master
            folder = self._folder / f"session-{self._sessions}"
            self._spark = SparkProcess(folder, master, self._jars)
        return self._spark

    def _command(self, step: Step, number: int, sink: Sink, folder: Path, fault: Fault) -> dict[str, Any]:
        options = {"kafka.bootstrap.servers": self._cluster.bootstrap, "topic": sink.topic}
        options["kafka.linger.ms"] = "0"
        source_options = {
            "kafka.bootstrap.servers": self._cluster.bootstrap, "subscribe": INPUT,
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(BATCH_RECORDS),
        }  # fmt: skip
        if sink is OURS:
            options |= {OPTION: fault.text(), "sinkId": f"fire-{number}", "jobTimeoutMs": "60000"}
            if step.workload == "batch":
                options["jobId"] = JOB
            if step.method:
                options["jobBootstrap"] = self._proxy_address
            if step.action == "lose all":
                options["retryTimeoutMs"] = "1500"
        return {
            "workload": step.workload, "run": number, "fault": fault.text(), "rows": ROWS, "tasks": TASKS,
            "format": sink.format, "source": sink.source, "options": options, "is_slow": self._is_distributed,
            "source_options": source_options, "checkpoint": str(folder / "checkpoint"),
        }  # fmt: skip

    async def _meanwhile(self, step: Step, number: int, folder: Path) -> bool:
        """Kills what the step says, once it is reached.  True when that is the process that is asked."""
        if not (folder / "reached").exists() or (folder / "killed").exists():
            return False
        (folder / "killed").touch()
        if step.action == "kill JVM":
            assert self._spark is not None
            self._spark.kill()
            return True
        nodes = self._cluster.nodes
        if step.action == "kill coordinator":
            nodes = [self._cluster.node(await self._coordinator(f"fire-{number}"))]
        for node in nodes:
            node.kill()
        for node in nodes:
            await node.wait_exit()
        (folder / "go").touch()
        await asyncio.sleep(DOWN_S)
        for node in nodes:
            await node.start()
        for node in nodes:
            await node.wait_ready(READY_S)
        return False

    async def _coordinator(self, sink_id: str) -> int:
        cluster = Cluster(self._cluster.bootstrap)
        await cluster.start()
        try:
            deadline_s = cluster.clock.monotonic() + READY_S
            key = f"tidegate.job/{sink_id}/any/any"
            return await cluster.coordinator(CoordinatorKind.TRANSACTION, key, deadline_s)
        finally:
            await cluster.close()

    # --- the verdict ----------------------------------------------------------------------------------------

    def _judge(self, verdict: Verdict, seen: list[Seen], folder: Path) -> None:
        """The records are those that the input's answer has, each once."""
        if verdict.step.workload == "batch":
            wanted = Counter(("", str(number)) for number in range(ROWS))
        else:
            wanted = self._counts(folder / "checkpoint" / "offsets")
        found = Counter((record.batch, record.row) for record in seen)
        verdict.records = len(seen)
        verdict.doubled = sum((found - wanted).values())
        verdict.missing = sum((wanted - found).values())
        if verdict.doubled or verdict.missing:
            verdict.wrong.append(f"{verdict.doubled} too many, {verdict.missing} missing")

    def _counts(self, offsets: Path) -> Counter[tuple[str, str]]:
        """What the stream's batches have to write, by the ends that Spark planned for them."""
        counts: Counter[str] = Counter()
        wanted: Counter[tuple[str, str]] = Counter()
        starts = dict.fromkeys(range(INPUT_PARTITIONS), 0)
        for batch in sorted(int(path.name) for path in offsets.iterdir() if path.name.isdigit()):
            ends = _ends((offsets / str(batch)).read_text().splitlines()[-1])
            for number, end in ends.items():
                counts.update(self._inputs[number][starts[number] : end])
            starts = ends
            wanted.update((str(batch), f"{key}:{count}") for key, count in counts.items())
        assert sum(starts.values()) == INPUT_RECORDS, starts
        return wanted

    def _judge_decisions(self, verdict: Verdict, seen: list[Seen], folder: Path) -> None:
        """No record is an attempt's that lost, and none was seen before its job was decided."""
        decisions = self._decisions[verdict.run] = {
            batch: decision
            for (sink, batch), decision in self._proxy.decisions.items()
            if sink == f"fire-{verdict.run}"
        }
        for path in folder.glob("decision-*"):
            found = json.loads(path.read_text())
            decisions[found["batch"]] = Decision(frozenset(found["winners"]), found["decided_ms"])
        for record in seen:
            decision = decisions.get(record.batch or JOB)
            if decision is None:
                verdict.wrong.append(f"seen, and no decision is known: {record}")
            elif not _has_won(record, decision):
                verdict.wrong.append(f"of an attempt that lost: {record}, {decision}")
            elif record.seen_ms < decision.decided_ms:
                verdict.wrong.append(f"seen before the decision: {record}, {decision}")
        sessions = Counter((record.batch, record.attempt, record.session) for record in seen)
        if len({(batch, attempt) for batch, attempt, _ in sessions}) < len(sessions):
            verdict.wrong.append(f"two sessions' records under one name: {sessions}")

    async def losers(self) -> int:
        """Records in the output's log that no reader may see; raises AssertionError when another reader of
        committed records finds something else than the watcher did."""
        watcher = self.watchers[OUTPUT]
        again = await watcher.read_again(committed=True)
        for run in watcher.seen.keys() | again.keys():
            seen = sorted((each.place, each.row) for each in watcher.seen[run])
            assert seen == sorted((each.place, each.row) for each in again[run]), (
                f"run {run} reads differently"
            )
        everything = await watcher.read_again(committed=False)
        return sum(map(len, everything.values())) - sum(map(len, again.values()))


def _has_won(record: Seen, decision: Decision) -> bool:
    return any(winner.startswith(f"{record.attempt}-") for winner in decision.winners)


def _ends(line: str) -> dict[int, int]:
    """Of either source's offset in Spark's log."""
    found = json.loads(line)
    offsets = found["topics"][INPUT]["offsets"] if "topics" in found else found[INPUT]
    return {int(partition): int(offset) for partition, offset in offsets.items()}
