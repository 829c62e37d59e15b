"""The graph code under the cycle checks, held against definitions that are too slow to use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidegate.chaos.checks.cycles import Edge, Graph, shortest_cycle, strongly_connected

NODES = 8
edges = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.sampled_from(Edge)), max_size=30
)


def build(listed: list[tuple[int, int, Edge]]) -> Graph:
    graph: Graph = {}
    for before, after, kind in listed:
        if before != after:
            graph.setdefault(before, {}).setdefault(after, kind)
    return graph


def reachable(graph: Graph) -> dict[int, set[int]]:
    found = {node: set(graph.get(node, {})) for node in range(NODES)}
    for middle in range(NODES):
        for node in range(NODES):
            if middle in found[node]:
                found[node] |= found[middle]
    return found


@given(edges)
def test_components_are_the_nodes_that_reach_each_other(listed: list[tuple[int, int, Edge]]) -> None:
    graph = build(listed)
    reach = reachable(graph)
    expected = {
        frozenset(b for b in range(NODES) if b == a or (b in reach[a] and a in reach[b]))
        for a in range(NODES)
    }
    assert {frozenset(found) for found in strongly_connected(graph)} == {
        found for found in expected if len(found) > 1
    }


@given(edges)
def test_the_shortest_cycle_is_a_cycle_and_none_is_shorter(listed: list[tuple[int, int, Edge]]) -> None:
    graph = build(listed)
    for component in strongly_connected(graph):
        cycle = shortest_cycle(graph, component)
        pairs = list(zip(cycle.ops, [*cycle.ops[1:], cycle.ops[0]], strict=True))
        assert [graph[a][b] for a, b in pairs] == list(cycle.edges)
        assert len(set(cycle.ops)) == len(cycle.ops) >= 2
        assert not any(has_closed_walk(graph, component, length) for length in range(2, len(cycle.ops)))


def has_closed_walk(graph: Graph, component: list[int], length: int) -> bool:
    for start in component:
        reached = {start}
        for _ in range(length):
            reached = {after for node in reached for after in graph.get(node, {})}
        if start in reached:
            return True
    return False


def test_a_long_chain_does_not_meet_the_recursion_limit() -> None:
    length = 20_000
    graph: Graph = {node: {(node + 1) % length: Edge.REALTIME} for node in range(length)}
    [component] = strongly_connected(graph)
    assert len(component) == length
