"""A cluster under load is rolled from an older version to this one, back, and again; then its metadata
feature is raised.

The load is that of the chaos scenarios, and so is the judgement: transactions, a consume-transform-produce
job in a classic group, librdkafka, plain writers; no record may be lost, doubled or torn, all replicas hold
the same bytes.  Beside it two consumers share a group of the newer protocol (KIP-848) and must be given every
committed record.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tidegate.chaos.checks import archive
from tidegate.chaos.load.processes import Plan
from tidegate.chaos.run.harness import Run, run_scenario
from tidegate.chaos.run.timed_kills import InjectedFault
from tidegate.chaos.scenarios.named import BETWEEN_S, NamedScenario
from tidegate.client.administration.admin import Admin, NewTopic  # type: ignore[attr-defined]
from tidegate.processes.local_cluster import LocalClusterError, LocalNode, OtherVersion
from tidegate.processes.node_process import last_words
from tidegate.wire.errors import ErrorCode, KafkaError

from .older_version import installed, with_former_names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

LAST_OF_LEVEL_3 = "fde157db027d5abb7725557f659c935e6e1b88a9"
FEATURE, FORMER_NAME = "tidegate.metadata.version", "metadata.version"
LEVEL_OLD, LEVEL_NEW = 3, 5
SETTING_OF_LEVEL_4 = {"compression.zstd.level": "5"}
GROUP = "upgrade-newer-protocol"
CATCH_UP_TIMEOUT_S = 60.0

Seen = set[tuple[str, int, int]]


class GroupOfTheNewerProtocol:
    """Members of one KIP-848 group in threads, each a consumer of librdkafka; what they were given."""

    def __init__(self, bootstrap: str, topic: str, members: int) -> None:
        self.seen: Seen = set()
        self.ends: dict[tuple[str, int], int] = {}
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._topic = topic
        self._threads = [
            threading.Thread(target=self._read, args=(bootstrap, n), daemon=True) for n in range(members)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, bootstrap: str, number: int) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": GROUP, "group.protocol": "consumer",
                "client.id": f"newer-{number}", "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "auto.commit.interval.ms": 500,
            }
        )  # fmt: skip
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                with self._lock:
                    self.seen.add((message.topic(), message.partition(), message.offset()))  # type: ignore[arg-type]
            elif error.fatal():
                self.errors.append(str(error))
                break
        consumer.close()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


class RollingUpgrade:
    """What is done to the cluster, and what must hold at each step."""

    def __init__(self, older: OtherVersion) -> None:
        self._older = older
        self.group: GroupOfTheNewerProtocol | None = None

    async def hurt(self, run: Run) -> None:
        self.group = GroupOfTheNewerProtocol(run.cluster.bootstrap, run.workload.plan.topic, members=2)
        await self._require_level(run, LEVEL_OLD)
        await self._roll_all(run, None, "new")
        await self._roll_all(run, self._older, "old again")
        await self._roll_all(run, None, "new again")
        await self._upgrade(run)
        await self._old_version_is_refused(run)
        for node in run.cluster.nodes:  # what the new level brought is read by every node that starts
            await self._roll(run, node, None, f"level {LEVEL_NEW}")
        await self._group_catches_up(run)

    async def _group_catches_up(self, run: Run) -> None:
        """The group commits up to where the partitions end now; up to there it must have been given
        everything."""
        assert self.group is not None
        async with Admin(run.cluster.bootstrap, client_id="upgrade", clock=run.cluster.clock) as admin:
            partitions = run.workload.plan.input_partitions
            self.group.ends = await admin.end_offsets(partitions, read_committed=True)
            deadline = run.now() + CATCH_UP_TIMEOUT_S
            behind = partitions
            while behind and run.now() < deadline:
                found = await admin.group_offsets(GROUP)
                behind = [
                    each
                    for each in partitions
                    if each not in found or found[each].offset < self.group.ends[each]
                ]
                await run.load(BETWEEN_S)
        run.outcome.require(
            "the group of the newer protocol keeps up", not behind, f"behind in {behind}" if behind else ""
        )

    async def _roll_all(self, run: Run, version: OtherVersion | None, what: str) -> None:
        for node in run.cluster.nodes:
            await self._roll(run, node, version, what)
            await self._administrate(run, f"{what}-{node.id}".replace(" ", "-"))

    async def _roll(self, run: Run, node: LocalNode, version: OtherVersion | None, what: str) -> None:
        """As docs/operations.md says: SIGTERM, start, ready, in sync, the next one."""
        await run.load(BETWEEN_S)
        run.say(f"node {node.id}: {what}")
        begin = run.now()
        code = await node.terminate()
        step = f"node {node.id}, {what}"
        run.outcome.require(f"a stop by SIGTERM is clean ({step})", code == 0, f"exit code {code}")
        node.version = version
        await run.recovery(
            step, InjectedFault(node.id, begin, code), "every client", lambda commit: commit.invoked >= begin
        )
        recovered = (await node.status()).recovered_logs
        run.outcome.require(f"a start needs no recovery ({step})", recovered == 0, f"{recovered} logs")
        await run.wait_in_sync()
        self._require_running(run, step)

    def _require_running(self, run: Run, step: str) -> None:
        ended = [node.id for node in run.cluster.nodes if not node.running]
        said = "; ".join(last_words(run.cluster.node(node_id).log_path, 0) for node_id in ended)
        run.outcome.require(
            f"no node stops by itself ({step})", not ended, f"{ended}: {said}" if ended else ""
        )

    async def _administrate(self, run: Run, name: str) -> None:
        """In a mixture: topics come and change, and what only level 4 knows is refused by whichever node is
        the controller."""
        async with Admin(run.cluster.bootstrap, client_id="upgrade", clock=run.cluster.clock) as admin:
            topic = f"made-{name}"
            await admin.create_topics([NewTopic(topic, 2, config={"retention.ms": "86400000"})])
            await admin.alter_config(topic, {"max.message.bytes": "2000000"})
            await admin.create_partitions({topic: 3})
            moved = {(topic, 0): [3, 1, 2]}
            await admin.reassign_partitions(moved)
            refusal = await refused(admin.alter_config(topic, SETTING_OF_LEVEL_4))
            # an old controller knows no such setting
            expected = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_CONFIG)
            run.outcome.require(f"what level 4 brings is refused ({name})", refusal in expected, f"{refusal}")
            await admin.delete_topics([topic])
        self._require_running(run, f"topics made and changed, {name}")

    async def _require_level(self, run: Run, expected: int) -> None:
        async with Admin(run.cluster.bootstrap, client_id="upgrade", clock=run.cluster.clock) as admin:
            levels = {each.name: each.level for each in await admin.describe_features()}
        level = levels.get(FEATURE, levels.get(FORMER_NAME))
        run.outcome.require(f"the level is {expected}", level == expected, f"{levels}")

    async def _upgrade(self, run: Run) -> None:
        async with Admin(run.cluster.bootstrap, client_id="upgrade", clock=run.cluster.clock) as admin:
            await admin.update_features({FEATURE: LEVEL_NEW})
            await admin.alter_config(run.workload.plan.topic, SETTING_OF_LEVEL_4)
        await run.load(BETWEEN_S)
        await self._require_level(run, LEVEL_NEW)
        self._require_running(run, "upgraded")

    async def _old_version_is_refused(self, run: Run) -> None:
        node = run.cluster.nodes[-1]
        await node.terminate()
        node.version = self._older
        said = ""
        try:
            await node.start()
            await node.wait_ready()
        except LocalClusterError as error:
            said = str(error)
        finally:
            if node.running:
                await node.terminate()
            node.version = None
        run.outcome.require("a node of the old version does not come back", "upgrade it" in said, said)
        await run.restart(node)
        await run.wait_in_sync()


async def refused(change: object) -> ErrorCode | None:
    """The code of what was asked for; None when it was done."""
    try:
        await change  # type: ignore[misc]
    except KafkaError as error:
        return error.code
    return None


def committed(
    logs: Mapping[tuple[str, int], Sequence[tuple[int, object]]], ends: Mapping[tuple[str, int], int]
) -> Seen:
    """Every committed record below the ends."""
    return {
        (*partition, offset)
        for partition, end in ends.items()
        for offset, _ in logs[partition]
        if offset < end
    }


async def test_nothing_is_lost_or_doubled_to_the_new_version_and_back(
    tmp_path: Path,
) -> None:
    folder = await asyncio.to_thread(installed, LAST_OF_LEVEL_3, tmp_path / "older")
    older = OtherVersion(folder, with_former_names)
    upgrade = RollingUpgrade(older)
    plan = Plan(writers=2, transforms=2, pause_max_s=0.1)
    scenario = NamedScenario("rolling-upgrade", "from an older version to this one", upgrade.hurt, plan=plan)
    try:
        outcome = await run_scenario(scenario, tmp_path / "run", 1.0, seed=1, say=print, version=older)
        print(outcome.table())
        assert outcome.passed, outcome.table() + "\n".join(outcome.disturbances[:20])
    finally:
        if upgrade.group is not None:
            upgrade.group.close()
    assert upgrade.group is not None
    assert upgrade.group.errors == []
    expected = committed(archive.read(outcome.directory).logs, upgrade.group.ends)
    missed = expected - upgrade.group.seen
    assert len(expected) > 100
    assert not missed, sorted(missed)[:10]
