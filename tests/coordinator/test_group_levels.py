"""What a group's record may hold is written from its level of `tidegate.metadata.version` on, and not below:
a coordinator of an older version cannot load it, or loses it (docs/tour.md, the rule for mixed versions)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tidegate.coordinator.group.classic import records as classic_records
from tidegate.coordinator.group.classic import state as classic_state
from tidegate.coordinator.group.classic.records import GroupValue, MemberValue, OffsetValue
from tidegate.coordinator.group.classic.state import GroupState
from tidegate.coordinator.group.consumer import records as consumer_records
from tidegate.coordinator.group.consumer import state as consumer_state
from tidegate.coordinator.group.consumer.records import (
    CLASSIC_TAG,
    ClassicMember,
    CurrentAssignment,
    MemberMetadata,
    RecordKind,
)
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.group.events import OffsetCommit, OffsetToCommit, TxnOffsetCommit
from tidegate.coordinator.group.levels import NEWEST_LEVEL
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_driver import G
from .coordinator_doubles import code_of
from .test_group_migration import Mixed, settled, share

LEVEL = NEWEST_LEVEL + 1
"""One that no release has."""
ONE = (MemberValue("m", None, "c", "/h", 1, 1, b"", b""),)
OF_CLASSIC = ClassicMember(1, ())
Write = Callable[[int], bytes]


def member(**said: Any) -> Write:
    metadata = MemberMetadata(None, None, "c", "/h", ("t",), None, 60_000, None, **said)
    return partial(consumer_records.encode_value, RecordKind.MEMBER, metadata)


def current(state: MemberState) -> Write:
    return partial(consumer_records.encode_value, RecordKind.CURRENT, CurrentAssignment(5, 4, state))


def generation(*members: MemberValue) -> Write:
    value = GroupValue("consumer", 1, None, None, 0, members)
    return partial(classic_records.encode_group_value, value)


def offset(expire_timestamp_ms: int) -> Write:
    return partial(classic_records.encode_offset_value, OffsetValue(0, -1, "", 0, expire_timestamp_ms))


GATES: tuple[tuple[dict[Any, Any], dict[Any, Write]], ...] = (
    # the levels, and what writes each
    (consumer_state.STORED_FROM, {state: current(state) for state in MemberState}),
    (consumer_records.FIELDS_STORED_FROM, {(RecordKind.MEMBER, CLASSIC_TAG): member(classic=OF_CLASSIC)}),
    (classic_state.STORED_FROM, {GroupState.EMPTY: generation(), GroupState.STABLE: generation(*ONE)}),
    (
        classic_records.VERSIONS_STORED_FROM,
        {
            ("OffsetCommitValue", 1): offset(5),
            ("OffsetCommitValue", 3): offset(-1),
            ("GroupMetadataValue", 3): generation(*ONE),
        },
    ),
)


def test_every_level_has_a_record_that_shows_it() -> None:
    for levels, states in (
        (consumer_state.STORED_FROM, MemberState),
        (classic_state.STORED_FROM, GroupState),
    ):
        missing = set(states) ^ levels.keys()
        assert not missing, f"{missing}: from which level on is it written (STORED_FROM)?"
    for levels, writes in GATES:
        gated = {key for key, level in levels.items() if level is not None}
        assert gated == writes.keys(), f"{gated ^ writes.keys()}: what writes it?"


@pytest.mark.parametrize("gate", GATES, ids=("member state", "field", "classic state", "version"))
def test_a_record_is_refused_below_the_level_of_what_it_holds(
    gate: tuple[dict[Any, Any], dict[Any, Write]], monkeypatch: pytest.MonkeyPatch
) -> None:
    levels, writes = gate
    for key, write in writes.items():
        with monkeypatch.context() as later:
            later.setitem(levels, key, LEVEL)
            with pytest.raises(KafkaError, match=f"needs {LEVEL}: `tidegate features upgrade`") as refused:
                write(LEVEL - 1)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION, key
            data = write(LEVEL)
            later.setitem(levels, key, None)
            assert write(1) == data, f"{key}: at every level"


@pytest.mark.parametrize("state", MemberState, ids=lambda state: state.name.lower())
def test_no_member_enters_a_state_of_a_later_level(
    state: MemberState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets UNSUPPORTED_VERSION, and the log nothing; from the level on the same request is
    carried out."""
    groups = Mixed(level=LEVEL - 1)
    if state is not MemberState.STABLE:
        groups.join("c")
    if state is MemberState.UNREVOKED_PARTITIONS:
        groups.join("m")
    requests = {
        MemberState.STABLE: lambda: groups.join("c"),
        MemberState.UNREVOKED_PARTITIONS: lambda: groups.beat(
            "c", 1, owned=groups.group.current["c"].assigned
        ),
        MemberState.UNRELEASED_PARTITIONS: lambda: groups.join("m"),
    }
    monkeypatch.setitem(consumer_state.STORED_FROM, state, LEVEL)
    before = bytes(groups.log.data.get(0, b""))
    assert code_of(requests[state]()) is ErrorCode.UNSUPPORTED_VERSION
    assert bytes(groups.log.data.get(0, b"")) == before
    groups.level = LEVEL
    assert code_of(requests[state]()) is ErrorCode.NONE
    assert state in {each.state for each in groups.group.current.values()}


def committed(groups: Mixed, **said: Any) -> Any:
    return groups.ask(OffsetCommit(G, (OffsetToCommit("flights", 0, 5),), **said))


def in_transaction(groups: Mixed) -> Any:
    return groups.ask(TxnOffsetCommit(G, 7, 0, (OffsetToCommit("flights", 0, 5),)))


def synced(groups: Mixed) -> Any:
    joined = groups.classic("", new_member_id="m")
    return groups.sync("m", joined.generation, m=share(0))


def downgraded(groups: Mixed) -> Any:
    level, groups.level = groups.level, LEVEL
    settled(groups)
    groups.level = level
    return groups.beat("c", -1)


@pytest.mark.parametrize(
    ("version", "request_kind"),
    [
        (("OffsetCommitValue", 3), committed),
        (("OffsetCommitValue", 1), partial(committed, retention_ms=5)),
        (("OffsetCommitValue", 3), in_transaction),
        (("GroupMetadataValue", 3), synced),
        (("GroupMetadataValue", 3), downgraded),
    ],
)
def test_the_shard_writes_by_the_finalised_level(
    version: tuple[str, int], request_kind: Callable[[Mixed], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(classic_records.VERSIONS_STORED_FROM, version, LEVEL)
    assert code_of(request_kind(Mixed(level=LEVEL - 1))) is ErrorCode.UNSUPPORTED_VERSION
    assert code_of(request_kind(Mixed(level=LEVEL))) is ErrorCode.NONE
