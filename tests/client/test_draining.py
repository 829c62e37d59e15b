"""Plans of where a broker's replicas go, and `tidegate brokers drain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.client import command_line
from tidegate.client.administration.operations import PartitionMove, RegisteredBroker
from tidegate.client.command_line.draining import plan_drain
from tidegate.client.connecting.metadata import PartitionMetadata, TopicView
from typer.testing import CliRunner, Result

clusters = st.integers(2, 7).flatmap(
    lambda count: st.tuples(
        st.fixed_dictionaries({node: st.sampled_from([None, "a", "b", "c"]) for node in range(count)}),
        st.lists(st.lists(st.integers(0, count - 1), min_size=1, max_size=4, unique=True), max_size=12),
        st.sets(st.integers(1, count - 1)),
    )
)


@given(clusters)
def test_a_plan_takes_the_broker_out_and_changes_nothing_else(
    cluster: tuple[dict[int, str | None], list[list[int]], set[int]],
) -> None:
    racks, lists, dead = cluster
    live = {node: rack for node, rack in racks.items() if node not in dead}
    replicas = {("t", number): nodes for number, nodes in enumerate(lists)}
    plan = plan_drain(0, live, replicas)
    held = {partition for partition, nodes in replicas.items() if 0 in nodes}
    assert set(plan.targets) | set(plan.stuck) == held
    assert not set(plan.targets) & set(plan.stuck)
    for partition, nodes in plan.targets.items():
        before = replicas[partition]
        changed = [place for place in range(len(before)) if before[place] != nodes[place]]
        assert changed == [before.index(0)]
        assert len(nodes) == len(before)
        assert len(set(nodes)) == len(nodes)
        assert nodes[changed[0]] in live
        assert 0 not in nodes
    for partition in plan.stuck:
        assert not set(live) - {0} - set(replicas[partition])


def test_a_successor_stands_where_the_fewest_others_do() -> None:
    live = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    assert plan_drain(5, live, {("t", 0): [5, 1, 3]}).targets == {("t", 0): [2, 1, 3]}
    assert plan_drain(1, live, {("t", 0): [1, 3]}).targets == {("t", 0): [2, 3]}, (
        "not beside the other of rack b"
    )
    assert plan_drain(3, live, {("t", 0): [1, 3]}).targets == {("t", 0): [1, 4]}


def test_replicas_and_leaderships_are_spread_over_those_that_stay() -> None:
    replicas = {("t", number): [1, 2] if number % 2 else [2, 1] for number in range(40)}
    targets = plan_drain(1, dict.fromkeys((1, 2, 3, 4, 5)), replicas).targets
    held = Counter(node for nodes in targets.values() for node in nodes)
    led = Counter(nodes[0] for nodes in targets.values())
    assert {node: held[node] for node in (3, 4, 5)} in (
        {3: 14, 4: 13, 5: 13},
        {3: 13, 4: 14, 5: 13},
        {3: 13, 4: 13, 5: 14},
    )
    assert led[2] == 20
    assert all(6 <= led[node] <= 7 for node in (3, 4, 5))


class Asked:
    """An admin of brokers 1 to 4; 4 is away.  A move ends when it has been looked at."""

    def __init__(self, replicas: dict[int, tuple[int, ...]], moves: list[PartitionMove]) -> None:
        self.replicas, self.moves = replicas, moves
        self._after = replicas
        self.moved: list[dict[tuple[str, int], list[int]]] = []

    async def list_brokers(self) -> list[RegisteredBroker]:
        return [RegisteredBroker(node, f"h:{node}", None, node != 4) for node in (1, 2, 3, 4)]

    async def list_reassignments(self) -> list[PartitionMove]:
        found, self.moves = self.moves, []
        for move in found:
            stays = [node for node in self.replicas[move.partition] if node not in move.removing]
            self._after = self.replicas | {move.partition: tuple(stays)}
        return found

    async def list_topics(self, *, internal: bool = False) -> list[TopicView]:
        parts = {
            number: PartitionMetadata(number, 1, 0, nodes, nodes) for number, nodes in self.replicas.items()
        }
        self.replicas = self._after
        return [TopicView("t", partitions=parts)] if internal else []

    async def reassign_partitions(self, targets: dict[tuple[str, int], list[int]]) -> None:
        self.moved.append(targets)
        self.replicas = self._after = self.replicas | {
            number: tuple(nodes) for (_, number), nodes in targets.items()
        }


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(asked: Asked, *words: str) -> Result:
        @asynccontextmanager
        async def connect(bootstrap: str, security: object) -> AsyncIterator[Asked]:
            yield asked

        monkeypatch.setattr(import_module("tidegate.client.command_line.brokers"), "connect", connect)
        monkeypatch.setattr(import_module("tidegate.client.command_line.partitions"), "WATCH_S", 0)
        arguments = ["brokers", "drain", *words]
        return CliRunner().invoke(command_line.build(arguments), arguments)

    return run


def test_no_replica_goes_to_a_broker_that_is_away(drain: Callable[..., Result]) -> None:
    asked = Asked({0: (1, 2)}, [])
    assert drain(asked, "1").exit_code == 0
    assert asked.moved == [{("t", 0): [3, 2]}], "not 4, which holds as few"
    stuck = drain(Asked({0: (1, 2, 3)}, []), "1")
    assert stuck.exit_code != 0
    assert "no other live broker can take t:0" in stuck.output


def leaving() -> Asked:
    return Asked({0: (1, 2, 3)}, [PartitionMove("t", 0, (1, 2, 3), adding=(3,), removing=(1,))])


def test_a_replica_that_moves_is_neither_moved_again_nor_called_gone(
    drain: Callable[..., Result],
) -> None:
    for option in ((), ("--dry-run",)):
        asked = leaving()
        said = drain(asked, "1", *option)
        assert said.exit_code == 0
        assert asked.moved == []
        assert "1 partitions are on their way from broker 1" in said.output
        assert "unregister" not in said.output


def test_waiting_lasts_until_what_was_on_its_way_has_left(drain: Callable[..., Result]) -> None:
    asked = leaving()
    said = drain(asked, "1", "--wait")
    assert asked.moved == []
    assert "then `tidegate brokers unregister 1`" in said.output
    assert all(1 not in nodes for nodes in asked.replicas.values())
