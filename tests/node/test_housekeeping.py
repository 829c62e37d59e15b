"""What a node does from time to time: each step does its work, leaves the disk to threads, and raises no
error of it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.node.start_and_stop import stop
from tidegate.node.upkeep.housekeeping import EXPIRY_S, ROUND_S, Housekeeping, HousekeepingStep
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.disk import Disk, RealDisk
from tidegate.storage.directory.set_aside import note_set_aside
from tidegate.storage.durability.flush_notes import identity_of
from tidegate.tests.eventually import eventually

from .made_node import Metadata, made_node


class Watched:
    """A disk or a file of it: notes what is called on the loop, and fails when it is to."""

    def __init__(self, target: Any, watch: Watched | None = None) -> None:
        self._target, self._watch = target, watch or self
        self.on_loop: list[str] = []
        self.failure = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        # `exists` raises nothing, and is asked on the loop for each log that is to be made
        return self._called(name, found) if callable(found) and name != "exists" else found

    def _called(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            watch = self._watch
            if threading.current_thread() is threading.main_thread():
                watch.on_loop.append(name)
            if watch.failure:
                raise OSError(watch.failure, "the disk")
            result = method(*arguments, **options)
            return Watched(result, watch) if name == "open" else result

        return call


def reserve_is_lost(node: Any) -> Callable[[], object]:
    reserve = node._reserves.first
    reserve._path.unlink()
    reserve.held = False
    return lambda: reserve.held


def a_flush_was_noted(node: Any) -> Callable[[], object]:
    notes = node._directory.folders[0].notes
    notes.note_flush(identity_of(UUID(int=9), 0), 5)
    assert notes._flushes._unsynced
    return lambda: not notes._flushes._unsynced


def a_codec_is_left(node: Any) -> Callable[[], object]:
    left = node._codecs.left
    assert node._codecs.is_due
    return lambda: node._codecs.left == left - 1


def a_replica_did_not_open(node: Any) -> Callable[[], object]:
    application, folder = node._parts.application, node._directory.folders[0]
    node._broker.replicas.delete("t", 0, UUID(int=9))
    application.replica_offline("t", 0)
    application._open_again_at_s = 0.0
    return lambda: ("t", 0) in folder.logs


def a_client_is_silent(node: Any) -> Callable[[], object]:
    known = node._broker.client_metrics._instances
    known[UUID(int=1)] = SimpleNamespace(
        seen_at_ms=-(10**9), subscription=SimpleNamespace(interval_ms=1), series=()
    )
    return lambda: not known


def a_damaged_log_is_old(node: Any) -> Callable[[], object]:
    path = node._directory.folders[0].path / "1-damaged"
    path.mkdir()
    note_set_aside(RealDisk(), path, 0, None)
    return lambda: not path.exists()


def a_producer_is_idle(node: Any) -> Callable[[], object]:
    (replica,) = node._broker.replicas.hosted
    producers = replica.log.producers
    producers.expiration_ms = 0
    producers._entries[7] = SimpleNamespace(producer_id=7, idle_since_ms=0, transaction_first_offset=None)
    return lambda: not producers._entries


HAS_WORK: dict[str, Callable[[Any], Callable[[], object]]] = {
    "reserves": reserve_is_lost,
    "flush notes": a_flush_was_noted,
    "codecs": a_codec_is_left,
    "unopened replicas": a_replica_did_not_open,
    "silent clients": a_client_is_silent,
    "damaged logs": a_damaged_log_is_old,
    "idle producers": a_producer_is_idle,
}
"""Each step, and what gives it work; the function that this returns says whether it is done."""


async def leading_node(tmp_path: Path, disk: Watched) -> Any:
    node = await made_node(tmp_path, cast(Disk, disk))
    metadata = Metadata(node)
    metadata.apply({})
    await metadata.led()
    return node


async def take(node: Any, name: str) -> None:
    work = node._parts.housekeeping.steps[name].run()
    if work is not None:
        await work


async def test_each_step_does_its_work_and_leaves_the_disk_to_threads(tmp_path: Path) -> None:
    disk = Watched(RealDisk())
    node = await leading_node(tmp_path, disk)
    try:
        steps = node._parts.housekeeping.steps.keys()
        assert steps == HAS_WORK.keys(), f"a step without a row of HAS_WORK: {steps ^ HAS_WORK.keys()}"
        for name, gives_work in HAS_WORK.items():
            is_done = gives_work(node)
            assert not is_done(), name
            disk.on_loop.clear()
            await take(node, name)
            assert not disk.on_loop, f"the step {name!r} calls the disk on the loop: use `_in_thread`"
            await eventually(is_done, name)
    finally:
        await stop(node.parts_in_order())


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("name", HAS_WORK)
async def test_no_step_raises_an_error_of_the_disk(tmp_path: Path, name: str, number: int) -> None:
    disk = Watched(RealDisk())
    node = await leading_node(tmp_path, disk)
    try:
        HAS_WORK[name](node)
        disk.failure = number
        await take(node, name)
        disk.failure = 0
    finally:
        await stop(node.parts_in_order())


def housekeeping(
    clock: ManualClock, failures: list[BaseException], **steps: HousekeepingStep
) -> Housekeeping:
    none: Any = None
    made = Housekeeping(none, clock, none, none, none, none, none, none, failures.append)
    cast(Any, made).steps = steps
    return made


async def test_a_step_is_taken_in_each_round_or_when_its_time_has_come() -> None:
    clock, taken = ManualClock(), list[str]()
    house = housekeeping(
        clock, [],
        often=HousekeepingStep(lambda: taken.append("often")),
        seldom=HousekeepingStep(lambda: taken.append("seldom"), EXPIRY_S),
    )  # fmt: skip
    house.start()
    for _ in range(int(2 * EXPIRY_S / ROUND_S)):
        await asyncio.sleep(0)
        clock.advance(ROUND_S)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await house.stop()
    assert (taken.count("often"), taken.count("seldom")) == (2 * EXPIRY_S / ROUND_S, 2)


async def test_a_node_whose_housekeeping_ends_by_a_defect_ends() -> None:
    """Nothing else makes the reserve anew: once it was released, writers would be refused until an operator
    acts."""
    clock, failures = ManualClock(), list[BaseException]()

    def defect() -> None:
        raise KeyError("a defect")

    house = housekeeping(clock, failures, defect=HousekeepingStep(defect))
    house.start()
    await asyncio.sleep(0)
    clock.advance(ROUND_S)
    await eventually(lambda: failures)
    await house.stop()
    assert [type(error) for error in failures] == [KeyError]
