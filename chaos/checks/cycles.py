"""Cycles in the order that transactions imposed on each other: Elle's G0 and G1c for an append-only log
(docs/semantics.md V5).

The nodes are the operations that must have committed.  An edge A -> B says that A comes before B, and why:

* `WW`: a value of B stands right behind a value of A in some partition's version order.
* `WR`: B read a value of A.
* `PROCESS`: B is the next operation of A's process.
* `REALTIME`: A was completed before B was invoked.

With read_committed readers a record is visible only after its transaction's commit, so every `WR`, `PROCESS`
and `REALTIME` edge goes from an earlier end to a later one: a cycle of those alone proves that a reader read
a later transaction's record. `WW` edges prove less, because transactions may interleave in a log; a cycle
that needs one is allowed.

Pure graph code.  Everything is iterative: a history of a hundred thousand transactions must not meet the
recursion limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from .evidence import Evidence
from .history import Op, OpOutcome


class Edge(IntEnum):
    """The reasons for an order, strongest evidence first; between the same two operations the strongest is
    kept."""

    WW = 0
    WR = 1
    PROCESS = 2
    REALTIME = 3


Graph = dict[int, dict[int, Edge]]
"""Operation index to the operations that come after it."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle: each operation comes before the next, and the last before the first."""

    name: str
    ops: tuple[int, ...]
    edges: tuple[Edge, ...]
    needs_write_order: bool

    def __str__(self) -> str:
        steps = (f"#{op} -{edge.name.lower()}-> " for op, edge in zip(self.ops, self.edges, strict=True))
        return "".join(steps) + f"#{self.ops[0]}"


LEVELS: tuple[tuple[Edge, ...], ...] = ((), (Edge.PROCESS,), (Edge.PROCESS, Edge.REALTIME))


def find_cycles(evidence: Evidence, *, write_order: bool) -> list[Cycle]:
    """The shortest cycle of every strongly connected component, named G0 or G1c with `-process` or
    `-realtime`.

    Without `write_order` only `WR` edges and the orders of processes and time are used: every cycle is then a
    violation.
    """
    nodes = [op for op in evidence.history if evidence.must_have_committed(op)]
    base: Graph = {}
    if write_order:
        add_edges(base, _write_write(evidence, nodes), Edge.WW)
    add_edges(base, _write_read(evidence, nodes), Edge.WR)
    extra = {Edge.PROCESS: list(_process(nodes)), Edge.REALTIME: list(_realtime(nodes))}
    found: dict[frozenset[int], Cycle] = {}
    for level in LEVELS:
        graph: Graph = {node: dict(after) for node, after in base.items()}
        for kind in level:
            add_edges(graph, extra[kind], kind)
        for component in strongly_connected(graph):
            cycle = shortest_cycle(graph, component)
            found.setdefault(frozenset(cycle.ops), cycle)
    return list(found.values())


def add_edges(graph: Graph, pairs: Iterable[tuple[int, int]], kind: Edge) -> None:
    for before, after in pairs:
        if before != after:
            graph.setdefault(before, {}).setdefault(after, kind)


def _write_write(evidence: Evidence, nodes: Sequence[Op]) -> Iterator[tuple[int, int]]:
    committed = {op.index for op in nodes}
    for partition, order in evidence.orders.items():
        previous: int | None = None
        for _, value in order.in_order():
            writer = evidence.writers.get((partition, value))
            if writer is None or writer.index not in committed:
                continue
            if previous is not None:
                yield previous, writer.index
            previous = writer.index


def _write_read(evidence: Evidence, nodes: Sequence[Op]) -> Iterator[tuple[int, int]]:
    for op in nodes:
        for poll in op.polls:
            for partition, records in poll.records.items():
                for _, value in records:
                    writer = evidence.writers.get((partition, value))
                    if writer is not None:
                        yield writer.index, op.index


def _process(nodes: Sequence[Op]) -> Iterator[tuple[int, int]]:
    last: dict[str, int] = {}
    for op in nodes:
        if op.process in last:
            yield last[op.process], op.index
        last[op.process] = op.index


def _realtime(nodes: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """The transitive reduction of "completed before invoked": as many edges an operation as there is
    concurrency.

    An operation of unknown outcome may take effect at any later time, so no operation comes after it for
    certain.
    """
    events = sorted(
        [(op.invoked, 0, op) for op in nodes]
        + [(op.completed, 1, op) for op in nodes if op.outcome is OpOutcome.OK],
        key=lambda event: (*event[:2], event[2].index),
    )
    frontier: set[int] = set()
    before: dict[int, frozenset[int]] = {}
    for _, completes, op in events:
        if completes:
            frontier -= before.pop(op.index)
            frontier.add(op.index)
        else:
            before[op.index] = frozenset(frontier)
            yield from ((earlier, op.index) for earlier in sorted(frontier))


def strongly_connected(graph: Mapping[int, Mapping[int, Edge]]) -> list[list[int]]:
    """Tarjan's components of two nodes and more."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    components: list[list[int]] = []
    for root in graph:
        if root in numbers:
            continue
        work = [(root, iter(graph.get(root, {})))]
        numbers[root] = lowest[root] = len(numbers)
        path.append(root)
        on_path.add(root)
        while work:
            node, successors = work[-1]
            for after in successors:
                if after not in numbers:
                    numbers[after] = lowest[after] = len(numbers)
                    path.append(after)
                    on_path.add(after)
                    work.append((after, iter(graph.get(after, {}))))
                    break
                if after in on_path:
                    lowest[node] = min(lowest[node], numbers[after])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == numbers[node]:
                    component = _take_component(path, on_path, node)
                    if len(component) > 1:
                        components.append(component)
    return components


def _take_component(path: list[int], on_path: set[int], root: int) -> list[int]:
    component = []
    while True:
        node = path.pop()
        on_path.remove(node)
        component.append(node)
        if node == root:
            return component


def shortest_cycle(
    graph: Mapping[int, Mapping[int, Edge]], component: Sequence[int], starts_max: int = 64
) -> Cycle:
    """The shortest cycle through one of the component's first `starts_max` nodes: a large tangle must not
    cost its square."""
    inside = set(component)
    best: list[int] | None = None
    for start in sorted(component)[:starts_max]:
        cycle = _cycle_through(graph, inside, start)
        if best is None or len(cycle) < len(best):
            best = cycle
    assert best is not None, "a component of two nodes and more has a cycle"
    edges = tuple(graph[node][best[(place + 1) % len(best)]] for place, node in enumerate(best))
    name = "G1c" if Edge.WR in edges else "G0"
    suffix = "-realtime" if Edge.REALTIME in edges else "-process" if Edge.PROCESS in edges else ""
    return Cycle(name + suffix, tuple(best), edges, Edge.WW in edges)


def _cycle_through(graph: Mapping[int, Mapping[int, Edge]], inside: set[int], start: int) -> list[int]:
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for after in graph.get(node, {}):
            if after == start:
                path = [node]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if after in inside and after not in came_from:
                came_from[after] = node
                queue.append(after)
    raise AssertionError(f"operation {start} is on no cycle of its component")
