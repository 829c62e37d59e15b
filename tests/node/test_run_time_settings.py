"""A node follows the settings that the metadata gives it while it runs (KIP-226)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID

from tidegate.controller.state.broker_settings import (
    BROKER_SETTINGS,
    CATCH_UP_SETTING,
    CLEANER_BACKOFF_SETTING,
    CLEANER_BUFFER_SETTING,
    CLEANER_SETTING,
    CONNECTIONS_OVERRIDES_SETTING,
    CONNECTIONS_PER_IP_SETTING,
    CONNECTIONS_SETTING,
    FOLLOWER_THROTTLE_SETTING,
    LEADER_THROTTLE_SETTING,
    LOG_DIRS_THROTTLE_SETTING,
    PRODUCER_ID_EXPIRATION_SETTING,
)
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ALL_NODES, ApplyResult, PartitionState, TopicState
from tidegate.controller.state.pinned_cuts import PinnedCut, PinnedPartition, PinnedTopic
from tidegate.node.assembly import _replication_config
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.metadata_application import MetadataApplication
from tidegate.node.settings.definitions import SETTINGS
from tidegate.node.settings.run_time_settings import SLICE_S, InheritedSettings, RunTimeSettings
from tidegate.node.start_and_stop import stop
from tidegate.replication.fetching.configuration import ReplicationConfig
from tidegate.replication.partition.assignment import Assignment
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.network import FrameServer
from tidegate.storage.log.pins import Pin
from tidegate.storage.topic_config import ConfigType
from tidegate.tests.replication.test_throttled_replicas import READ_FROM

from .made_node import Metadata, made_node
from .test_configuration import loaded

Follower = Callable[[Any], Awaitable[int]]


def test_what_is_set_at_run_time_holds_until_the_file_holds_again() -> None:
    configuration = loaded(**{CATCH_UP_SETTING: 9})  # type: ignore[arg-type]
    limits: list[int | None] = []
    state = ClusterState()
    clock, settings = ManualClock(), RunTimeSettings(configuration)
    cluster = ClusterView(
        configuration.node_id, cast(Any, SimpleNamespace(state=state)), cast(Any, None), clock
    )
    replicas = SimpleNamespace(change_limits=lambda new: limits.append(new.catch_up_bytes_per_s), apply=list)
    directory, groups = (
        SimpleNamespace(expect=list, topic_ids={}),
        SimpleNamespace(topics_changed=lambda: None),
    )
    parts: list[Any] = [SimpleNamespace(broker_epoch=1), replicas, directory, groups]
    application = MetadataApplication(cluster, settings, *parts, clock=clock)  # type: ignore[misc]

    def applied(configs: dict[int, dict[str, str]] | None = None) -> None:
        state.index += 1
        if configs is not None:
            state.node_configs = configs
        application.apply(state, ApplyResult(state.index, 1))

    applied()
    applied({ALL_NODES: {CATCH_UP_SETTING: "100", CLEANER_SETTING: "7"}})
    applied()
    assert limits == [9, 100], (
        "the file's, then that for all nodes, and nothing for an entry about something else"
    )
    assert settings.number(CLEANER_SETTING) == 7
    applied({ALL_NODES: {CATCH_UP_SETTING: "100"}, 1: {CATCH_UP_SETTING: "5"}, 2: {CATCH_UP_SETTING: "6"}})
    applied({})
    assert limits == [9, 100, 5, 9]
    assert settings.number(CLEANER_SETTING) == 32 << 20


OWN = [setting.key for setting in BROKER_SETTINGS.values() if not setting.topic_key]


def of_limit(name: str) -> Follower:
    async def found(node: Any) -> int:
        return READ_FROM[name](node._broker.replicas)

    return found


def admitted(peers: Callable[[int], str]) -> Follower:
    """How many connections the node's listener admits."""

    async def found(node: Any) -> int:
        server: FrameServer = node._listener
        own = [peer for peer in map(peers, range(100)) if server.admit(peer)]
        for peer in own:
            server.release(peer)
        return len(own)

    return found


async def pace_and_map_of_a_cleaning(node: Any) -> tuple[int, int]:
    found: list[tuple[int, int]] = []
    cleaning = SimpleNamespace(
        run=lambda _disk, _on_loop, pace, map_bytes: found.append((pace._rate, map_bytes))
    )
    node._parts.upkeep._run(cleaning, asyncio.get_running_loop())
    return found[0]


async def pace_of_the_cleaner(node: Any) -> int:
    return (await pace_and_map_of_a_cleaning(node))[0]


async def map_of_the_cleaner(node: Any) -> int:
    return (await pace_and_map_of_a_cleaning(node))[1]


async def pause_of_the_cleaner_ms(node: Any) -> int:
    """Its node has nothing to clean."""
    upkeep, asleep = node._parts.upkeep, asyncio.get_running_loop().create_future()

    async def sleep(delay_s: float) -> None:
        asleep.set_result(delay_s)
        await asyncio.Event().wait()

    clock, upkeep._clock = upkeep._clock, ManualClock()
    upkeep._clock.sleep = sleep
    cleaner = asyncio.create_task(upkeep._clean_forever())
    try:
        return round(1000 * await asyncio.wait_for(asleep, 10))
    finally:
        cleaner.cancel()
        upkeep._clock = clock


async def slice_of_a_move(node: Any) -> int:
    asked: list[int] = []
    (path,) = node._configuration.data_dirs
    future = Mock(is_over=False, target=Mock(path=path), turn=asked.append)
    await node._parts.moves._take_turn(future)
    return asked[0]


FOLLOWS: dict[str, Follower] = {
    CATCH_UP_SETTING: of_limit("catch_up_bytes_per_s"),
    CLEANER_SETTING: pace_of_the_cleaner,
    CLEANER_BACKOFF_SETTING: pause_of_the_cleaner_ms,
    CLEANER_BUFFER_SETTING: map_of_the_cleaner,
    LEADER_THROTTLE_SETTING: of_limit("leader_throttled_bytes_per_s"),
    FOLLOWER_THROTTLE_SETTING: of_limit("follower_throttled_bytes_per_s"),
    LOG_DIRS_THROTTLE_SETTING: slice_of_a_move,
    CONNECTIONS_SETTING: admitted(lambda number: f"10.0.0.{number}:1"),
    CONNECTIONS_PER_IP_SETTING: admitted(lambda number: f"10.0.0.1:{number}"),
    CONNECTIONS_OVERRIDES_SETTING: admitted(lambda number: f"10.0.0.2:{number}"),
    PRODUCER_ID_EXPIRATION_SETTING: of_limit("producer_id_expiration_ms"),
}
"""Each setting, and what its part does by it: a node is asked after each of two changes.  What topics inherit
comes to their logs: `tests/storage/test_pure_parts.py`."""
AS_TEXT = {CONNECTIONS_OVERRIDES_SETTING: "10.0.0.2:{}"}


def test_every_setting_that_changes_at_run_time_has_a_row() -> None:
    missing = [key.name for key in OWN if key.name not in FOLLOWS]
    assert not missing, f"{missing}: FOLLOWS says what shows that the part that reads it follows a change"


async def test_the_parts_of_a_running_node_follow_each_change_of_a_setting(tmp_path: Path) -> None:
    node = await made_node(tmp_path)
    try:
        await node._listen()
        metadata = Metadata(node)
        metadata.apply({})
        await metadata.led()
        for name, follower in FOLLOWS.items():
            least = BROKER_SETTINGS[name].key.minimum or 0
            for value in (least + 7, least + 5):
                metadata.apply({ALL_NODES: {name: AS_TEXT.get(name, "{}").format(value)}})
                assert await follower(node) == value, f"{name}: its part has not followed to {value}"
    finally:
        await stop(node.parts_in_order())


def test_a_setting_that_changes_at_run_time_is_the_same_in_the_file() -> None:
    """What topics inherit is not among these: it has the bounds of the topics' table."""
    for key in OWN:
        if key.name in SETTINGS:
            row, most = SETTINGS[key.name], 2**31 - 1 if key.type is ConfigType.INT else 2**63 - 1
            assert (row.shown_default, row.minimum, row.maximum) == (key.default, key.minimum, most), key.name


def test_replication_without_a_configuration_runs_as_a_node_without_settings() -> None:
    made = _replication_config(loaded(), RunTimeSettings(loaded()))
    assert replace(made, make_logs_in_background=False) == ReplicationConfig()


def test_every_limit_of_replication_is_a_setting() -> None:
    settings = RunTimeSettings(loaded())
    settings.update({ALL_NODES: {key.name: "7777" for key in OWN if key.type is not ConfigType.STRING}})
    assert set(asdict(settings.replication_limits()).values()) == {7777}


def test_every_field_of_an_assignment_comes_from_the_metadata() -> None:
    """A field that is added, and left at its default here, would be so on every node."""
    place = PartitionState(
        (1, 2), (1,), leader=1, leader_epoch=3, partition_epoch=4, elr=(2,), adding=(2,), target=(2,)
    )
    state = ClusterState()
    topic = TopicState("a", UUID(int=9), {"retention.ms": "5"}, {7: place}, {})
    state._topics.by_name["a"] = topic
    kept = PinnedTopic(topic.topic_id, "a", {7: PinnedPartition(2, 9, ((4711, 5),))})
    state.pinned_cuts = {"c": PinnedCut("c", "pin", "cut", 1, 2, 3, is_confirmed=True, topics=(kept,))}
    cluster, settings = cast(Any, SimpleNamespace(state=state, node_id=1)), RunTimeSettings(loaded())
    parts: list[Any] = [SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), SimpleNamespace()]
    application = MetadataApplication(cluster, settings, *parts, clock=ManualClock())  # type: ignore[misc]
    (made,) = application._assignments(state, [("a", 7)])
    expected = {"topic": "a", "topic_id": topic.topic_id, "partition": 7, "config": topic.config}
    expected["pins"] = (Pin("c", 2, 9, settled_end=5, is_confirmed=True),)
    for field in fields(Assignment):
        value = getattr(made, field.name)
        assert value == expected.get(field.name, getattr(place, field.name, None)), field.name
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        assert value != default, f"{field.name} shows nothing"
    cluster.node_id = 3
    (elsewhere,) = application._assignments(state, [("a", 7)])
    assert elsewhere == replace(made, pins=()), "a replica elsewhere keeps what is pinned"


async def test_a_new_default_for_all_topics_is_applied_in_slices() -> None:
    """Here each partition takes 0.5 ms.  What comes meanwhile is applied at once, and a newer default begins
    anew."""
    clock, taken = ManualClock(), dict[tuple[str, int], str]()
    state = ClusterState()
    for name in ("a", "b"):
        partitions = dict.fromkeys(range(1000), PartitionState((1,), (1,), leader=1))
        state._topics.by_name[name] = TopicState(name, UUID(int=ord(name)), {}, partitions, {})

    def apply(assignments: list[Assignment]) -> None:
        for each in assignments:
            clock.advance(0.0005)
            taken[each.topic, each.partition] = each.config.get("retention.ms", "")

    cluster = ClusterView(1, cast(Any, SimpleNamespace(state=state)), cast(Any, None), clock)
    replicas = SimpleNamespace(change_limits=lambda _new: None, apply=apply)
    directory, groups = (
        SimpleNamespace(expect=list, topic_ids={}),
        SimpleNamespace(topics_changed=lambda: None),
    )
    parts: list[Any] = [SimpleNamespace(broker_epoch=1), replicas, directory, groups]
    application = MetadataApplication(cluster, RunTimeSettings(loaded()), *parts, clock=clock)  # type: ignore[misc]

    def applied(retention_ms: str = "", *, changed: tuple[tuple[str, int], ...] = ()) -> None:
        state.index += 1
        if retention_ms:
            state.node_configs = {ALL_NODES: {"log.retention.ms": retention_ms}}
        taken.clear()
        application.apply(state, ApplyResult(state.index, 1, changed_partitions=frozenset(changed)))

    applied()
    applied("1000")
    in_a_slice = len(taken)
    assert 1 <= in_a_slice <= 1 + SLICE_S / 0.0005
    await asyncio.sleep(0)
    assert in_a_slice < len(taken) <= 2 * (1 + SLICE_S / 0.0005)
    applied(changed=(("b", 999),))
    assert taken == {("b", 999): "1000"}
    applied("2000")
    for _ in range(5000):
        await asyncio.sleep(0)
    assert taken == {(name, number): "2000" for name in ("a", "b") for number in range(1000)}
    applied("3000")
    application.stop()
    await asyncio.sleep(0)
    assert len(taken) <= 1 + SLICE_S / 0.0005, "a stopping node applies nothing more"


def test_a_node_that_cannot_take_a_default_up_fails() -> None:
    failures: list[BaseException] = []
    error = OSError("the disk")

    def refuse(_key: tuple[str, int]) -> None:
        raise error

    InheritedSettings(refuse, ManualClock().monotonic, failures.append).begin_again(iter([("a", 0)]))
    assert failures == [error]
