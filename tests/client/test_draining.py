"""Plans of where a broker's replicas go."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tidegate.client.command_line.draining import plan_drain

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
    assert set(plan.targets) | set(plan.stuck) == held and not set(plan.targets) & set(plan.stuck)
    for partition, nodes in plan.targets.items():
        before = replicas[partition]
        changed = [place for place in range(len(before)) if before[place] != nodes[place]]
        assert changed == [before.index(0)] and len(nodes) == len(before)
        assert len(set(nodes)) == len(nodes) and nodes[changed[0]] in live and 0 not in nodes
    for partition in plan.stuck:
        assert not set(live) - {0} - set(replicas[partition])


def test_a_successor_stands_where_the_fewest_others_do() -> None:
    live = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    assert plan_drain(5, live, {("t", 0): [5, 1, 3]}).targets == {("t", 0): [2, 1, 3]}
    assert plan_drain(1, live, {("t", 0): [1, 3]}).targets == {("t", 0): [2, 3]}, "not beside the other of rack b"
    assert plan_drain(3, live, {("t", 0): [1, 3]}).targets == {("t", 0): [1, 4]}


def test_replicas_and_leaderships_are_spread_over_those_that_stay() -> None:
    replicas = {("t", number): [1, 2] if number % 2 else [2, 1] for number in range(40)}
    targets = plan_drain(1, dict.fromkeys((1, 2, 3, 4, 5)), replicas).targets
    held = Counter(node for nodes in targets.values() for node in nodes)
    led = Counter(nodes[0] for nodes in targets.values())
    assert {node: held[node] for node in (3, 4, 5)} in ({3: 14, 4: 13, 5: 13}, {3: 13, 4: 14, 5: 13}, {3: 13, 4: 13, 5: 14})
    assert led[2] == 20 and all(6 <= led[node] <= 7 for node in (3, 4, 5))
