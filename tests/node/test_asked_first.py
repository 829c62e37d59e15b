"""Each request's handler asks what the table in `node/handlers/asked_first.py` says, and nothing above it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.handlers.asked_first import ASKED_FIRST, Asked
from tidegate.wire.api import ApiKey

#: What a handler calls or reads of the broker's parts; which of them counts first is the order of `Asked`.
QUESTIONS: dict[Asked, tuple[str, ...]] = {
    Asked.LEASE: ("replicas.append_now", "replicas.delete_records", "MarkerWrites"),
    Asked.COORDINATOR: ("groups.ask", "groups.ask_all", "transactions.ask", "transactions.ask_all"),
    Asked.CONTROLLER: ("controller.", "topics.create"),
    Asked.SESSION: ("lifecycle.holds_session",),
    Asked.LEADER: ("replicas.fetch", "replicas.list_offsets", "replicas.epoch_end"),
    Asked.METADATA: ("state",),
    Asked.NODE: ("moves.", "client_metrics.", "replicas.hosted", "replicas.replica"),
    Asked.CLIENT: ("context.authentication",),
}


@dataclass(slots=True)
class Read:
    """What a handler's function, and what it uses of its own package, does."""

    asked: set[str] = field(default_factory=set)
    """`a.b` for each `broker.a.b`, `context.a` as it stands, and the names that are called."""
    awaited: set[str] = field(default_factory=set)


def read(code: Any, package: str, seen: set[Any], into: Read) -> None:
    if code in seen or getattr(code, "__module__", "").rpartition(".")[0] != package:
        return
    seen.add(code)
    known = vars(sys.modules[code.__module__])
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            into.asked.add(node.func.id)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("broker.", "context.")):
            into.asked.add(ast.unparse(node).removeprefix("broker."))
        if isinstance(node, ast.Await):
            called = node.value.func if isinstance(node.value, ast.Call) else node.value
            name = ast.unparse(called).removeprefix("broker.")
            if getattr(known.get(name), "__module__", "").rpartition(".")[0] != package:
                into.awaited.add(name)
        if isinstance(node, ast.AsyncFor | ast.AsyncWith):
            into.awaited.add(ast.unparse(node).partition("\n")[0])
        if isinstance(node, ast.Name):
            used = known.get(node.id)
            if inspect.isfunction(used) or inspect.isclass(used):
                read(used, package, seen, into)


@cache
def read_of(key: int) -> Read:
    handler, found = HANDLERS.decoded.get(key) or HANDLERS.staged[key], Read()
    read(handler, handler.__module__.rpartition(".")[0], set(), found)
    return found


def is_question(name: str, asked: Asked) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in QUESTIONS[asked])


def test_every_request_has_a_row() -> None:
    assert {ApiKey(key) for key in HANDLERS.keys} == ASKED_FIRST.keys()


@pytest.mark.parametrize("key", sorted(HANDLERS.keys), ids=lambda key: ApiKey(key).name.lower())
def test_a_handler_asks_what_its_row_says(key: int) -> None:
    found = read_of(key).asked
    first = next(asked for asked in Asked if any(is_question(name, asked) for name in found))
    assert first is ASKED_FIRST[ApiKey(key)], f"the handler asks {first.name} first: this is its row"


@dataclass(slots=True, frozen=True)
class Awaits:
    """What a handler awaits besides the part that its row of `ASKED_FIRST` asks, and why what it knew before
    still holds, or who asks again."""

    names: tuple[str, ...]
    why: str


AWAITS: dict[ApiKey, Awaits] = {
    ApiKey.PRODUCE: Awaits(
        (
            "batch_threads.run",
            "done",
            "enlistment.ask",
            "enlistment.confirm_owner",
            "question",
            "turns.before_next",
        ),
        "`append_now` asks lease, leader and guard in the step of the append, and `DelayedProduce` the lease "
        "before it acknowledges; the topic id is compared there, and settings that changed are used",
    ),
    ApiKey.LIST_OFFSETS: Awaits(
        ("batch_threads.ask", "turns.before_next"),
        "the leader is asked behind the turn, and anew with each batch that a thread has decoded",
    ),
    ApiKey.METADATA: Awaits(
        ("charge_mutations", "create", "topics.auto_create", "turns.before_next"),
        "a topic is described from the state behind the last await; one that it creates is asked for again",
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Awaits(
        ("turns.before_next",), "state and rights are read anew behind each turn"
    ),
    ApiKey.FIND_COORDINATOR: Awaits(
        ("topics.ensure_internal_topic", "turns.before_next"),
        "the session is asked for each key, and again when the topic is there",
    ),
    **dict.fromkeys(
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.DELETE_GROUPS,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.OFFSET_FETCH,
        ),
        Awaits(("turns.before_next",), "right and shard are asked for each name behind its turn"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Awaits(
        ("topics.ensure_internal_topic",), "only then the shard is asked, which decides"
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Awaits(
        ("groups.learn_pattern",), "only then the shard is asked, which decides"
    ),
    ApiKey.TXN_OFFSET_COMMIT: Awaits(
        ("enlistment.ask", "enlistment.confirm_owner", "groups.partition_for"),
        "the guard is compared when the shard appends, in the leadership for which it was loaded",
    ),
    ApiKey.LIST_TRANSACTIONS: Awaits(
        ("turns.before_next",), "the shards have answered before: the answer is of that moment"
    ),
    ApiKey.INIT_PRODUCER_ID: Awaits(("producer_ids.next",), "no two callers get the same id"),
    ApiKey.DELETE_RECORDS: Awaits(("asyncio.gather",), "each part asks for its own partition, and its right"),
    ApiKey.WRITE_TXN_MARKERS: Awaits(
        ("writes.all_known",), "a marker is known when it is committed in the leadership that appended it"
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Awaits(
        ("moves.move_to",), "folder and metadata are looked at anew for each partition"
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Awaits(("asyncio.to_thread",), "nothing rests on the figures of a disk"),
    ApiKey.PUSH_TELEMETRY: Awaits(("asyncio.to_thread",), "what a forgotten client pushed is dropped"),
    ApiKey.SASL_AUTHENTICATE: Awaits(("clock.sleep",), "the answer is known before the pause"),
}
ONLY_WAITS = {"topics.wait_for_metadata"}
"""The answer is the controller's, and known already."""


@pytest.mark.parametrize("key", sorted(HANDLERS.keys), ids=lambda key: ApiKey(key).name.lower())
def test_a_handler_says_why_what_it_asked_still_holds_after_an_await(key: int) -> None:
    row = ASKED_FIRST[ApiKey(key)]
    beside = {name for name in read_of(key).awaited - ONLY_WAITS if not is_question(name, row)}
    said = set(AWAITS[ApiKey(key)].names) if ApiKey(key) in AWAITS else set()
    assert beside == said, (
        "at each await the node may lose its leadership or session: AWAITS says who asks again"
    )


CHARGED = {"controller.create_partitions", "controller.delete_topics", "topics.auto_create", "topics.create"}
"""These make or delete partitions of clients, which a quota of theirs bounds (KIP-599)."""
NOT_CHARGED = {
    "controller.alter_configs", "controller.change_delegation_token", "controller.change_security",
    "controller.charge_mutations", "controller.describe_active_quorum", "controller.elect_leaders",
    "controller.reassign_partitions", "controller.unregister_broker", "controller.update_features",
    "topics.ensure_internal_topic", "topics.new_topic_config", "topics.wait_for_metadata",
    "topics.would_create",
}  # fmt: skip


def test_a_handler_that_makes_or_deletes_partitions_charges_its_client() -> None:
    called = {key: read_of(key).asked for key in HANDLERS.keys}
    of_controller = {
        name for names in called.values() for name in names if name.startswith(("controller.", "topics."))
    }
    assert of_controller == CHARGED | NOT_CHARGED, (
        f"what a handler asks of the controller stands in one: {of_controller ^ CHARGED ^ NOT_CHARGED}"
    )
    for key, names in called.items():
        if names & CHARGED:
            assert "charge_mutations" in names, f"{ApiKey(key).name}: call charge_mutations before"
