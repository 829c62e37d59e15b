"""Writes states.md, diagrams and tables of the state machines, from the tables that the product runs;
`--check` only says whether the page is current."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tidegate.client.producing import transaction_manager as producer
from tidegate.coordinator.group.classic import state as group
from tidegate.coordinator.group.consumer import state as consumer
from tidegate.coordinator.transaction import state as transaction
from tidegate.replication.fetching import followed
from tidegate.replication.partition import isr_change

PAGE = Path(__file__).with_name("states.md")
Edge = tuple[str, str, str]

HEAD = """# State machines

Made by `docs/states.py` from the tables that the coordinators, the partition leaders and the client run;
`tests/docs` holds the page against them, and `tests/coordinator`, `tests/replication` and `tests/client` hold
every cell against an outcome that is written down a second time.
"""
TRANSACTION = """
## Transactional ids

The coordinator's view (docs/semantics.md T1), one entry for each transactional id in `__transaction_state`. A
request's producer id and epoch are judged first; *repeated* is an EndTxn that comes once more with the epoch
it had (TV2). An id of which nothing is known counts as Dead. While markers are on their way, requests that
Kafka answers with CONCURRENT_TRANSACTIONS wait here for up to a second.
"""
GROUP = """
## Classic groups

The protocol of JoinGroup and SyncGroup (docs/semantics.md G1). Member id, instance id and generation are
judged first. A group of which nothing is known counts as Dead.
"""
CONSUMERS = """
## Consumer groups

The protocol of ConsumerGroupHeartbeat (KIP-848). The diagram is a member's: how it gets from what it owns to
what the target assignment gives it. The table says what a request does, by what its sender is to the group;
*left* is a static member that left for a while.
"""
PRODUCER = """
## The producer of `tidegate.client`

What the program asks for, and what the brokers answer. A pair that is not in the table is refused with a
sentence that says what to call instead. Every state leads to *fatal error* by a fatal failure.
"""

LEADER = """
## ISR changes of a partition leader

One change of the ISR is pending at a time, and as long as it is, the high watermark waits for all replicas
that its outcome may put into the ISR or keep there (docs/semantics.md R1, R8). A change that is *sent* goes
to the controller until an answer comes; maintenance runs from time to time.
"""
PAUSES = """
A follower outside of the ISR is proposed as soon as it has caught up, but for a *paused* one, for which the
high watermark does not wait either. The last of these events counts.
"""
FETCHERS = """
## Partitions at a fetcher

What a follower's fetch session with a leader (KIP-227, docs/semantics.md R5) knows of a partition. In every
state but *listed* the next fetch lists it, after the pause of an error or of a throttle.
"""


def diagram(edges: Iterable[Edge]) -> str:
    """A Mermaid state diagram; what leads from one state to another stands on one arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for before, what, after in edges:
        labels.setdefault((before, after), []).append(what)
    lines = [f"  {before} --> {after}: {', '.join(what)}" for (before, after), what in labels.items()]
    return "\n```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


def table(corner: str, columns: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    lines = ["| " + " | ".join([corner, *columns]) + " |"]
    lines.append("|" + "---|" * (lines[0].count("|") - 1))
    lines += ["| " + " | ".join([name, *cells]) + " |" for name, cells in rows]
    return "\n" + "\n".join(lines) + "\n"


def transactions() -> str:
    states = [state for state in transaction.TransactionState if state is not transaction.PREPARE_EPOCH_FENCE]
    edges: list[Edge] = []
    for (state, stimulus), action in transaction.RULES.items():
        following = transaction.leads_to(state, action)
        if following is not None and state in states:
            assert transaction.may_follow(state, following, 2)
            edges.append((state.display_name, stimulus.value, following.display_name))
    rows = [
        (each.value, [transaction.RULES[state, each].value for state in states])
        for each in transaction.Stimulus
    ]
    return TRANSACTION + diagram(edges) + table("", [state.display_name for state in states], rows)


def groups() -> str:
    why = {
        (group.EMPTY, group.PREPARING): "a member joins",
        (group.PREPARING, group.EMPTY): "no member is left",
        (group.PREPARING, group.COMPLETING): "all have joined, or time is up",
        (group.COMPLETING, group.STABLE): "the leader's assignment is committed",
        (group.COMPLETING, group.PREPARING): "a member joins, leaves or expires",
        (group.STABLE, group.PREPARING): "a member joins, leaves or expires",
        (group.EMPTY, group.DEAD): "deleted, or nothing left of it",
    }
    pairs = [(before, after) for after, befores in group.VALID_PREVIOUS.items() for before in befores]
    edges = [
        (before.value, why[before, after], after.value)
        for before, after in sorted(pairs, key=list(why).index)
    ]
    assert len(edges) == len(why)
    rows = [
        (each.value, [group.RULES[state, each].value for state in group.GroupState])
        for each in group.GroupRequest
    ]
    return GROUP + diagram(edges) + table("", [state.value for state in group.GroupState], rows)


def consumer_groups() -> str:
    stable, unrevoked, unreleased = consumer.MemberState
    edges = [
        (stable.name, "the target takes partitions that it reads", unrevoked.name),
        (unrevoked.name, "given up, and that was all", stable.name),
        (unrevoked.name, "given up, others hold what it shall get", unreleased.name),
        (unrevoked.name, "given up, a newer target takes more", unrevoked.name),
        (stable.name, "others hold what the target gives", unreleased.name),
        (unreleased.name, "released", stable.name),
        (unreleased.name, "a newer target takes partitions that it reads", unrevoked.name),
    ]
    rows = [
        (each.value, [consumer.RULES[it, each].value for it in consumer.Situation])
        for each in consumer.MemberRequest
    ]
    return CONSUMERS + diagram(edges) + table("", [situation.value for situation in consumer.Situation], rows)


def producers() -> str:
    moves = producer.TRANSITIONS.items()
    edges = [
        (before.name, event.value, after.name)
        for (before, event), after in moves
        if event is not producer.Event.FATAL_FAILURE
    ]
    rows = [
        (f"`{state.name}`", [_cell(producer.TRANSITIONS.get((state, event))) for event in producer.Event])
        for state in producer.State
    ]
    return PRODUCER + diagram(edges) + table("", [event.value for event in producer.Event], rows)


def leaders() -> str:
    edges = [
        (before.name, event.value, after.name)
        for (before, event), after in isr_change.TRANSITIONS.items()
        if after is not before
    ]
    pending = [state for state in isr_change.ChangeState if state is not isr_change.ChangeState.ENDED]
    rows = [
        (event.value, [isr_change.TRANSITIONS[state, event].value for state in pending])
        for event in isr_change.ChangeEvent
    ]
    pauses = [
        (event.value, ["paused" if is_paused else "not paused"])
        for event, is_paused in isr_change.JOIN_PAUSED.items()
    ]
    return (
        LEADER
        + diagram(edges)
        + table("", [state.value for state in pending], rows)
        + PAUSES
        + table("", ["the follower is"], pauses)
    )


def fetchers() -> str:
    moves = followed.TRANSITIONS
    edges = [
        (before.name, event.value, after.name)
        for (before, event), after in moves.items()
        if after is not before
    ]
    rows = [
        (event.value, [_cell(moves.get((state, event))) for state in followed.ListingState])
        for event in followed.ListingEvent
    ]
    return FETCHERS + diagram(edges) + table("", [state.value for state in followed.ListingState], rows)


def _cell(state: producer.State | followed.ListingState | None) -> str:
    return "" if state is None else state.value


def main() -> int:
    fresh = HEAD + transactions() + groups() + consumer_groups() + leaders() + fetchers() + producers()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != fresh:
            print("docs/states.md is out of date: run `python docs/states.py`", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
