"""What a broker does with each part of the metadata, and that log entries, a snapshot and a start lead its
parts to the same."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from copy import copy
from dataclasses import fields
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import pytest
import tidegate
from tidegate.chaos.sim.quorum.commands import Commands
from tidegate.controller.state.broker_settings import BROKER_SETTINGS
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import (
    ALL_NODES,
    ApplyResult,
    BrokerState,
)
from tidegate.controller.state.snapshot import Contents
from tidegate.node import metadata_application
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.metadata_application import MetadataApplication
from tidegate.node.settings.run_time_settings import RunTimeSettings
from tidegate.proto import metadata_pb2 as pb
from tidegate.replication.fetching.configuration import ReplicationLimits
from tidegate.replication.partition.assignment import Assignment
from tidegate.runtime.clock import ManualClock

from .test_configuration import loaded

PRODUCT = Path(next(iter(tidegate.__path__)))
OWN: Final = [name for name, setting in BROKER_SETTINGS.items() if not setting.topic_key]
READ: Final = "brokers read it in the state, whenever they need it"
CONTROLLERS: Final = "controllers alone act on it, on the state itself"
ACTED_ON: Final[dict[str, tuple[str, ...] | str]] = {
    "brokers": ("probed", "eligible"),
    "topics": ("replicas", "subscribed", "deleted"),
    "pinned_cuts": ("replicas",),
    "node_configs": ("replicas", "limits", "settings"),
    "features": READ,  # and `check_known` ends a node that does not know a level
    "cluster_id": READ,
    "resource_configs": READ,
    "security": READ,
    "index": READ,
    "term": CONTROLLERS,
    "metadata_id": CONTROLLERS,
    "next_producer_id": CONTROLLERS,
    "controller_id": CONTROLLERS,
    "controller_epoch": CONTROLLERS,
    "proposers": CONTROLLERS,
    "session_timeout_ms": CONTROLLERS,
}
"""Field of the state -> the parts below that `MetadataApplication` tells of a change, or why it tells
none."""


PARTS: Final = sorted({part for acted in ACTED_ON.values() if isinstance(acted, tuple) for part in acted})


class Node:
    """A broker's application, with parts that note what the latest call has told them."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.replicas: dict[tuple[str, int], Assignment] = {}
        self.subscribed: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.probed: dict[int, BrokerState] = {}
        self.eligible: dict[int, BrokerState] = {}
        self.limits: ReplicationLimits | None = None
        self.settings: dict[str, str] = {}
        self._id = 1
        clock = ManualClock()
        cluster = ClusterView(self._id, cast(Any, self), cast(Any, None), clock)
        replicas = SimpleNamespace(
            apply=self._assign, delete=self._delete, brokers_changed=self._brokers_changed,
            change_limits=lambda limits: setattr(self, "limits", limits),
        )  # fmt: skip
        groups = SimpleNamespace(
            topics_changed=lambda: setattr(self, "subscribed", self._sizes()),
            topics_deleted=lambda names: self.deleted.update(names),
        )
        directory, lifecycle = (
            SimpleNamespace(expect=list, topic_ids={}),
            SimpleNamespace(broker_epoch=0, heartbeat_soon=int),
        )
        parts: list[Any] = [lifecycle, replicas, directory, groups]
        self.application = MetadataApplication(
            cluster, RunTimeSettings(loaded()), *parts, clock=clock,  # type: ignore[misc]
            on_brokers_changed=lambda: setattr(self, "probed", dict(self.state.brokers)),
            on_settings=lambda new: setattr(self, "settings", {name: new.text(name) for name in OWN}),
        )  # fmt: skip

    def _sizes(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self.state.topics.items()}

    def _assign(self, assignments: Iterable[Assignment]) -> None:
        for each in assignments:
            self.replicas.pop((each.topic, each.partition), None)
            if self._id in each.replicas:
                self.replicas[each.topic, each.partition] = each

    def _delete(self, topic: str, partition: int, topic_id: UUID) -> None:
        held = self.replicas.get((topic, partition))
        if held is not None and held.topic_id == topic_id:
            del self.replicas[topic, partition]

    def _brokers_changed(self, nodes: Container[int]) -> None:
        present = self.state.brokers
        of = {each: present if each in nodes else self.eligible for each in present.keys() | self.eligible}
        self.eligible = {each: known[each] for each, known in of.items() if each in known}

    def applied(self, result: ApplyResult) -> None:
        """Its broker is registered already; what was deleted is compared for each call."""
        self.deleted = set()
        self.application.apply(self.state, result)

    def told(self) -> dict[str, object]:
        return {part: copy(getattr(self, part)) for part in PARTS}


def contents(state: ClusterState) -> dict[str, object]:
    found = state.contents()
    return {each.name: getattr(found, each.name) for each in fields(Contents)}


def command_of(random: Random, drawn: Commands, state: ClusterState) -> bytes:
    """The simulator's, and now and then a setting that topics inherit."""
    command = drawn.draw(state, 1)
    if random.random() < 0.1:
        entry = pb.ConfigEntry(key="log.retention.ms", value=str(random.randrange(9)))
        wanted = pb.ChangeNodeConfig(node_id=random.choice((ALL_NODES, 1)), set=[entry])
        command = pb.Command(operations=[pb.Operation(change_node_config=wanted)])
    return command.SerializeToString()


def test_entries_a_snapshot_and_a_start_tell_the_parts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker gets each entry, one a snapshot from time to time, and one begins with that snapshot.  What
    an entry tells which parts is the table's."""
    monkeypatch.setattr(metadata_application, "check_known", lambda *_: None)  # levels of no feature, too
    seen = set[tuple[str, str]]()
    for seed in range(12):
        random = Random(seed)
        drawn, by_entry, by_snapshot = Commands(random), Node(), Node()
        by_entry.applied(by_entry.state.apply(2, 1, b""))
        by_snapshot.applied(by_snapshot.state.apply(2, 1, b""))
        for _ in range(100):
            state, before = by_entry.state, contents(by_entry.state)
            names, told = {each.topic_id: name for name, each in state.topics.items()}, by_entry.told()
            by_entry.applied(state.apply(state.index + 1, 1, command_of(random, drawn, state)))
            after = contents(state)
            changed = {name for name, value in after.items() if value != before[name]}
            assert by_entry.deleted == {name for each, name in names.items() if not state.topic_by_id(each)}
            found = {part for part, value in by_entry.told().items() if value != told[part]}
            pairs = {(name, part) for name in changed for part in found if part in ACTED_ON[name]}
            assert found - {"deleted"} == {part for _, part in pairs} - {"deleted"}, f"{changed} {found}"
            seen |= pairs
            if random.random() < 0.15:
                names = {each.topic_id: name for name, each in by_snapshot.state.topics.items()}
                by_snapshot.applied(by_snapshot.state.restore(state.encode()))
                gone = {name for each, name in names.items() if not state.topic_by_id(each)}
                assert by_snapshot.deleted == gone
                (begun := Node()).applied(begun.state.restore(state.encode()))
                expected = by_entry.told() | {"deleted": gone}
                assert by_snapshot.told() == expected, f"seed {seed}: a snapshot tells something else"
                # nothing was deleted, and replicas that are made ask for the brokers themselves
                expected |= {"deleted": set(), "eligible": {}}
                assert begun.told() == expected, f"seed {seed}: a start tells something else"
    listed = {(name, part) for name, parts in ACTED_ON.items() if isinstance(parts, tuple) for part in parts}
    assert seen == listed, "the table says what was never seen"


def test_every_part_of_the_state_has_a_row() -> None:
    assert [each.name for each in fields(Contents) if each.name not in ACTED_ON] == [], (
        "ACTED_ON is to say what brokers do with it"
    )
    assert ACTED_ON.keys() == {each.name for each in fields(Contents)}
    source = "".join(
        path.read_text() for room in ("node", "replication") for path in (PRODUCT / room).rglob("*.py")
    )
    read = set(re.findall(r"\bstate\.(\w+)", source))
    assert {name for name, row in ACTED_ON.items() if row == READ} <= read, "no part of a broker reads it"
    assert {name for name, row in ACTED_ON.items() if row == CONTROLLERS} & read == set(), "brokers read it"
