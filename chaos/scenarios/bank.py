"""A bank over 50 partitions, of which cuts are taken while nodes are killed (docs/cuts.md).

In each round a transaction with a record in every partition is open from before the first cut to after the
last: a cut that waited for it would never be finished.  A node is killed meanwhile, and comes back.  Each cut
is read at once, and some are read again when the round is over.  Then two readings with a defect on purpose
have to be found: what the cut leaves out is not left out, and an end lies one transaction lower.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...client.administration.admin import Admin
from ...client.consuming.cut import Cut, CutPartition, Key, Order
from ...client.consuming.cut_reader import read_cut
from ...client.consuming.fetched import ConsumerRecord
from ...wire.errors import KafkaError
from ..checks.cut_checks import CutRead, problems
from ..checks.history import Op
from ..load.bank import held_open
from ..load.processes import Plan
from ..run import targets
from ..run.harness import Run
from ..run.targets import Pick
from ..run.timed_kills import InjectedFault, kill_coordinator_mid_commit, kill_node
from .named import BETWEEN_S, NamedScenario

CUTS_PER_ROUND_MIN: Final = 5
READ_AGAIN_EVERY: Final = 5
PAUSE_S: Final = 0.1
CUT_TIMEOUT_S: Final = 30.0
BANK: Final = Plan(
    partitions=50, derived_partitions=1, writers=4, plain_writers=0, transforms=0, readers=1,
    librdkafka=False, is_bank=True, pause_max_s=0.1, transaction_timeout_ms=120_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """A cut, when it was asked for and there, and the first reading at it."""

    cut: Cut
    asked: float
    there: float
    values: frozenset[str]

    @property
    def took_ms(self) -> float:
        return 1000 * (self.there - self.asked)


@dataclass
class Audit:
    """Takes cuts of a run, and judges them."""

    run: Run
    last: Taken | None = None
    durations_ms: list[float] = field(default_factory=list)
    durations_beside_kills_ms: list[float] = field(default_factory=list)
    open_beside: list[int] = field(default_factory=list)
    """For each cut, the transactions that were open from before it was asked for until after it was there."""
    records: int = 0

    async def take(self, admin: Admin) -> Taken:
        run = self.run
        asked = run.now()
        cut = await admin.take_cut([run.workload.plan.topic])
        there = run.now()
        records = await self._read(cut)
        ops = run.history.ops()
        values = self._judge(asked, records, ops)
        taken = Taken(cut, asked, there, frozenset(values))
        if self.last is not None:
            grown = cut.order(self.last.cut) in (Order.NEWER, Order.SAME) and self.last.values <= taken.values
            run.outcome.require("a later cut contains an earlier one", grown, f"that of {asked:.1f} s")
        self.last = taken
        self.open_beside.append(sum(1 for op in ops if _is_open_beside(op, taken)))
        return taken

    async def take_until(self, enough: asyncio.Event) -> list[Taken]:
        """At least `CUTS_PER_ROUND_MIN`; none after one that did not come."""
        found: list[Taken] = []
        cluster = self.run.cluster
        async with Admin(
            cluster.bootstrap, client_id="chaos-cuts", clock=cluster.clock, timeout_s=CUT_TIMEOUT_S,
            security=cluster.security,
        ) as admin:  # fmt: skip
            why = ""
            while not why and (len(found) < CUTS_PER_ROUND_MIN or not enough.is_set()):
                try:
                    found.append(await self.take(admin))
                except KafkaError as error:
                    why = repr(error)
                await self.run.load(PAUSE_S)
        self.run.outcome.require("no cut waits for a transaction that stays open", not why, why)
        return found

    async def read_again(self, taken: Taken) -> list[ConsumerRecord]:
        records = await self._read(taken.cut)
        values = self._judge(taken.asked, records, self.run.history.ops())
        same = taken.values == set(values)
        self.run.outcome.require("a cut that is read again has the same records", same)
        return records

    async def require_found(self, what: str, cut: Cut, asked: float) -> None:
        """The checks can fail: they have to find this."""
        read = CutRead(asked, _values(await self._read(cut)))
        found = any(problems(read, self.run.history.ops()).values())
        self.run.outcome.require(f"{what} is found", found)

    async def _read(self, cut: Cut) -> list[ConsumerRecord]:
        cluster = self.run.cluster
        found = [record async for record in read_cut(cluster.bootstrap, cut, security=cluster.security)]
        self.records += len(found)
        return found

    def _judge(self, asked: float, records: Sequence[ConsumerRecord], ops: Sequence[Op]) -> list[str]:
        values = _values(records)
        for name, found in problems(CutRead(asked, values), ops).items():
            self.run.outcome.require(name, not found, f"{len(found)} found, the first: {found[:1]}")
        return values

    def note(self, taken: Sequence[Taken], kill: InjectedFault, whole: float) -> None:
        """`whole`: when all replicas were in sync again."""
        for each in taken:
            is_beside = each.there > kill.killed_at_monotonic and each.asked < whole
            (self.durations_beside_kills_ms if is_beside else self.durations_ms).append(each.took_ms)

    def show(self) -> None:
        if self.last is None:
            return
        figures = self.run.outcome.figures
        figures["cuts"] = len(self.open_beside)
        for name, found in (
            ("cut_ms", self.durations_ms), ("cut_ms_beside_kills", self.durations_beside_kills_ms),
        ):  # fmt: skip
            if found:
                in_order = sorted(found)
                figures[f"{name}_median"] = statistics.median(in_order)
                figures[f"{name}_p99"] = in_order[math.ceil(0.99 * len(in_order)) - 1]
                figures[f"{name}_max"] = in_order[-1]
        figures["open_beside_a_cut_min"] = min(self.open_beside)
        figures["open_beside_a_cut_max"] = max(self.open_beside)
        figures["records_read_at_cuts"] = self.records


def _is_open_beside(op: Op, taken: Taken) -> bool:
    return (
        op.transactional_id is not None
        and any(True for _ in op.sends)
        and op.invoked < taken.asked
        and (op.completed if op.ending is None else op.ending) > taken.there
    )


def _values(records: Sequence[ConsumerRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


async def _killed(run: Run, pick: Pick) -> InjectedFault:
    target = await pick(run)
    kill = await kill_node(run.cluster, target.node)
    await run.recovery(f"{target.role} killed", kill, target.affected_clients, target.affected(kill))
    return kill


async def _killed_mid_commit(run: Run) -> InjectedFault:
    name = run.chance.choice(run.workload.writer_ids)
    kill = await kill_coordinator_mid_commit(run.cluster, name)
    await run.recovery("coordinator killed mid-commit", kill, name, lambda c: c.transactional_id == name)
    return kill


KILLS: Final[Sequence[Callable[[Run], Awaitable[InjectedFault]]]] = (
    _killed_mid_commit,
    lambda run: _killed(run, targets.leader),
    lambda run: _killed(run, targets.controller),
    lambda run: _killed(run, targets.coordinator),
)


async def bank(run: Run) -> None:
    """Rounds, until the time of the run is over."""
    audit = Audit(run)
    number = 0
    while number == 0 or run.now() < run.until:
        await _round(run, audit, number)
        number += 1
    audit.show()


async def _round(run: Run, audit: Audit, number: int) -> None:
    run.say(f"bank: kill {number + 1}, {len(audit.open_beside)} cuts so far")
    enough = asyncio.Event()
    async with held_open(run.workload.context, number):
        taking = asyncio.create_task(audit.take_until(enough), name="chaos-cuts")
        try:
            await run.load(BETWEEN_S)
            kill = await KILLS[number % len(KILLS)](run)
            await run.wait_in_sync()
            whole = run.now()
            await run.load(BETWEEN_S)
        finally:
            enough.set()
            taken = await taking
    if not taken:
        return
    audit.note(taken, kill, whole)
    for each in taken[:-1:READ_AGAIN_EVERY]:
        await audit.read_again(each)
    last = taken[-1]
    lower = _lower(last.cut, await audit.read_again(last))
    await audit.require_found("an end that lies one transaction lower", lower, last.asked)
    everything = _nothing_left_out(last.cut)
    await audit.require_found("what a cut leaves out, and a reader does not,", everything, last.asked)


def _nothing_left_out(cut: Cut) -> Cut:
    return _changed(cut, {key: replace(part, undecided={}) for key, part in cut.partitions.items()})


def _lower(cut: Cut, records: Sequence[ConsumerRecord]) -> Cut:
    """One partition ends at the last record that a reader gets there."""
    last = records[-1]
    key = last.topic, last.partition
    part = cut.partitions[key]
    left = {each: first for each, first in part.undecided.items() if first < last.offset}
    return _changed(cut, {**cut.partitions, key: CutPartition(part.start, last.offset, left)})


def _changed(cut: Cut, partitions: dict[Key, CutPartition]) -> Cut:
    topics = {
        name: replace(topic, partitions={n: partitions[name, n] for n in topic.partitions})
        for name, topic in cut.topics.items()
    }
    return replace(cut, topics=topics)


BANK_UNDER_CUTS: Final = NamedScenario(
    "bank",
    "cuts of a bank over 50 partitions are taken and read while nodes die; each must balance, and wait for "
    "no open transaction",
    bank,
    plan=BANK,
)
