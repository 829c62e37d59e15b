"""Full disks, and disks whose flushes fail.

Full: each node's data is on a small file system of its own (small_disks.py), and is filled to the last byte.
Failing: the fault point `disk.sync` makes every flush below a folder answer EIO, as a dying disk would, while
the bytes stay in the page cache.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...client.administration.admin import Admin
from ...client.administration.descriptions import NewTopic
from ...processes.local_cluster import LocalNode
from ...wire.errors import KafkaError
from ..checks.history import Partition
from ..machine.small_disks import empty, fill
from ..run import targets
from ..run.harness import RECHECK_INTERVAL_S, SECOND_FOLDER, Run
from ..run.targets import Target
from ..run.timed_kills import FaultInjectionError, InjectedFault
from .named import BETWEEN_S, NamedScenario

FULL_DISK_BYTES: Final = 48 << 20
SMALL_RESERVE: Final = {"metadata.reserve.bytes": 1 << 20}
FULL_S: Final = 4.0
REFUSED_S: Final = 3.0
LARGE_BYTES: Final = 500_000
"""A record larger than the free space (the rest of each file's last page) but smaller than the reserve, which
is not for records."""
WRITE_TIMEOUT_S: Final = 15.0
SAYS_SO_TIMEOUT_S: Final = 15.0
FAIL_STOP_TIMEOUT_S: Final = 20.0
FAIL_STOP_CODE: Final = 70
OFFLINE: Final = "tidegate_offline_data_folders 1"
IS_FULL: Final = "is full"


async def disk_full(run: Run) -> None:
    """The disk of a leader is full: writes to its partitions wait, other writes and all reads continue; with
    space, all do."""
    await run.load(BETWEEN_S)
    target = await targets.leader(run)
    elsewhere = [
        partition for partition, leader in (await run.leaders()).items() if leader not in (-1, target.node.id)
    ]
    full = InjectedFault(target.node.id, run.now(), None)
    try:
        await _keep_full(run, [target.node])
        await _require_readable(run)
        written = await run.workload.write_one(run.chance.choice(elsewhere), WRITE_TIMEOUT_S)
        run.outcome.require(
            "partitions that are led elsewhere take records while one disk is full", not written, written
        )
    finally:
        empty(target.node.data_path)
    await _with_room_again(run, [target.node], full)


async def majority_full(run: Run) -> None:
    """More than half of the disks are full: no write is acknowledged, reads continue; with space, writes
    continue."""
    await run.load(BETWEEN_S)
    nodes = run.chance.sample(run.cluster.nodes, len(run.cluster.nodes) // 2 + 1)
    full = InjectedFault(0, run.now(), None)
    try:
        await _keep_full(run, nodes)
        await _require_readable(run)
        run.say("writing with full disks")
        partition = run.chance.choice(run.workload.plan.input_partitions)
        refused = await run.workload.write_one(partition, REFUSED_S, LARGE_BYTES)
        run.outcome.require(
            "nothing that needs room is acknowledged while the disks of a majority are full", bool(refused)
        )
    finally:
        for node in nodes:
            empty(node.data_path)
    await _with_room_again(run, nodes, full)


async def _keep_full(run: Run, nodes: list[LocalNode]) -> None:
    """Fills the disks except for the nodes' reserves; metadata changes must still succeed, in these
    reserves."""
    run.say(f"full disks: {', '.join(f'node {node.id}' for node in nodes)}")
    begin = run.now()
    for node in nodes:
        await asyncio.to_thread(fill, node.data_path)
    changes = await _change_metadata(run, FULL_S)
    run.outcome.require("the metadata can be changed while disks are full", changes > 0, f"{changes} times")
    await run.load(begin + FULL_S - run.now())
    for node in nodes:
        said = await _says(run, node, "readyz", IS_FULL)
        run.outcome.require(
            "a node with a full disk says so and lives", node.running and said, f"node {node.id}"
        )


async def _require_readable(run: Run) -> None:
    run.say("reading with full disks")
    unread = await run.workload.unreadable()
    names = ", ".join(f"{topic}-{number}" for topic, number in unread)
    run.outcome.require("what was written can be read while disks are full", not unread, names)


async def _with_room_again(run: Run, nodes: list[LocalNode], full: InjectedFault) -> None:
    run.say("room again")
    room = InjectedFault(full.node_id, run.now(), None)
    await run.recovery(
        "room on the disk again",
        room,
        "every client",
        lambda c: c.acknowledged >= room.killed_at_monotonic,
        restart=False,
    )
    for node in nodes:
        run.outcome.require(
            "a node with room again is ready by itself",
            await _says(run, node, "readyz", "ready"),
            f"node {node.id}",
        )
    await run.load(BETWEEN_S)


async def sync_fails(run: Run) -> None:
    """Flushes of one of a leader's data folders fail: the folder goes offline, the node says so and goes on
    with the other one, other nodes lead; with a new disk, the node comes back."""
    await run.load(BETWEEN_S)
    target, led = await _leader_in_second_folder(run)
    node = target.node
    folder = node.directory / SECOND_FOLDER
    failed = InjectedFault(node.id, run.now(), None)
    await node.arm_fault("disk.sync", match={"path": f"{folder}*"}, action="fail")
    await run.recovery(
        "flushes of a data folder failed",
        failed,
        target.affected_clients,
        target.affected(failed),
        restart=False,
    )
    said = await _says(run, node, "metrics", OFFLINE)
    run.outcome.require(
        "the node says that its folder is offline, and lives",
        said and node.running,
        f"node {node.id}: {folder}",
    )
    leaders = await run.leaders()
    still = [f"{topic}-{number}" for topic, number in led if leaders[topic, number] == node.id]
    run.outcome.require("others lead what was in the folder", not still, ", ".join(still))
    await node.terminate()
    await run.restart(node)
    await run.load(BETWEEN_S)


async def _leader_in_second_folder(run: Run) -> tuple[Target, list[Partition]]:
    leaders = await run.leaders()
    led: dict[int, list[Partition]] = {}
    for (topic, number), leader in leaders.items():
        if leader > 0 and (run.cluster.node(leader).directory / SECOND_FOLDER / f"{topic}-{number}").is_dir():
            led.setdefault(leader, []).append((topic, number))
    if not led:
        raise FaultInjectionError("no partition is led from a second data folder: there is nothing to fail")
    node = run.cluster.node(run.chance.choice(sorted(led)))
    partitions = frozenset(led[node.id])
    clients = f"writers of its {len(partitions)} partitions in that folder"
    return Target(node, "leader", clients, lambda commit: not partitions.isdisjoint(commit.partitions)), led[
        node.id
    ]


async def journal_sync_fails(run: Run) -> None:
    """A flush of one voter's metadata journal fails: it stops at once, the active controller and a follower
    in turn."""
    await run.load(BETWEEN_S)
    active = await targets.controller(run)
    followers = [node for node in run.cluster.nodes if node.id != active.node.id]
    first = (run.rounds + run.outcome.seed) % 2 == 0
    target = active if first else targets.leading(await run.leaders(), run.chance.choice(followers), "voter")
    node = target.node
    await node.arm_fault("disk.sync", match={"path": f"{node.data_path}/quorum*"}, action="fail")
    failed = InjectedFault(node.id, run.now(), None)
    writing = asyncio.create_task(_change_metadata(run, FAIL_STOP_TIMEOUT_S))
    try:
        code = await node.wait_exit(FAIL_STOP_TIMEOUT_S)
    except TimeoutError:
        code = None
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    run.outcome.require(
        "a voter whose journal cannot be flushed stops by itself",
        code == FAIL_STOP_CODE,
        f"node {node.id}, {target.role}: exit code {code} after "
        f"{run.now() - failed.killed_at_monotonic:.2f} s",
    )
    await run.recovery(
        f"journal of the {target.role} failed", failed, target.affected_clients, target.affected(failed)
    )
    await run.load(BETWEEN_S)


async def _change_metadata(run: Run, seconds: float) -> int:
    """Makes every voter write and flush, repeatedly; returns the number of acknowledged changes."""
    changes = 0
    until = run.now() + seconds
    while run.now() < until:
        name = f"chaos-change-{run.rounds}-{changes}"
        try:
            async with Admin(
                run.cluster.bootstrap,
                client_id="chaos-harness",
                clock=run.cluster.clock,
                timeout_s=5.0,
                security=run.cluster.security,
            ) as admin:
                await admin.create_topics([NewTopic(name, 1, 1)], wait=False)
                await admin.delete_topics([name])
                changes += 1
        except KafkaError:
            await asyncio.sleep(RECHECK_INTERVAL_S)
    return changes


async def _says(run: Run, node: LocalNode, page: str, text: str) -> bool:
    """Whether a page of the node's HTTP listener shows this text within a short time."""
    deadline = run.now() + SAYS_SO_TIMEOUT_S
    while run.now() < deadline and node.running:
        if text in (await node.page(f"/{page}") or ""):
            return True
        await asyncio.sleep(RECHECK_INTERVAL_S)
    return False


SICK_DISKS: Final = (
    NamedScenario(
        "disk-full", "the disk of a leader is full for a while", disk_full, SMALL_RESERVE,
        disk_bytes=FULL_DISK_BYTES
    ),
    NamedScenario(
        "disk-full-majority", "more than half of the disks are full for a while", majority_full,
        SMALL_RESERVE,
        disk_bytes=FULL_DISK_BYTES,
    ),
    NamedScenario("sync-fails", "flushes of one of a leader's two data folders fail", sync_fails,
        data_folders=2),
    NamedScenario("journal-fails", "flushes of a voter's metadata journal fail", journal_sync_fails),
)  # fmt: skip
