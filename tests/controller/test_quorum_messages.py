"""The fixed schema: what is encoded comes back, and nothing else is accepted."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.raft.messages import (
    NUMBER_MAX,
    AppendEntries,
    AppendReply,
    Frame,
    Hello,
    MalformedMessage,
    Message,
    Ping,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
    VoterRecord,
    VoterStatus,
    decode,
    encode,
)
from tidegate.controller.raft.thread import TERMS_AHEAD_MAX, RaftThread
from tidegate.controller.raft.transport import PeerUp, Received

NUMBER = st.integers(0, NUMBER_MAX)
JOURNAL = st.integers(1, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    term = draw(st.integers(1, NUMBER_MAX))
    previous = draw(NUMBER)
    commands = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    entries = tuple(
        (command, previous + 1 + n, draw(st.integers(1, term))) for n, command in enumerate(commands)
    )
    return AppendEntries(term, draw(NUMBER), previous, draw(NUMBER), entries)


@st.composite
def voter_statuses(draw: st.DrawFn) -> VoterStatus:
    voters = draw(st.lists(st.integers(0, 99), max_size=5, unique=True))
    roster = tuple(VoterRecord(voter, draw(JOURNAL), draw(NUMBER)) for voter in voters)
    return VoterStatus(draw(JOURNAL), draw(st.booleans()), draw(st.booleans()), roster)


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    data = draw(st.binary(min_size=1, max_size=50))
    position = draw(st.integers(0, 2**40))
    return SnapshotChunk(
        draw(NUMBER), draw(NUMBER), draw(U32), position + len(data) + draw(st.integers(0, 99)), position, data
    )


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    appends(),
    chunks(),
    st.builds(AppendReply, NUMBER, st.booleans(), NUMBER, NUMBER, JOURNAL, st.booleans()),
    st.builds(VoteRequest, NUMBER, NUMBER, NUMBER, st.booleans()),
    st.builds(VoteReply, NUMBER, st.booleans(), st.booleans()),
    st.builds(SnapshotReply, NUMBER, U32, NUMBER, NUMBER, JOURNAL, st.booleans()),
    voter_statuses(),
    st.builds(
        Hello,
        st.integers(0, 2**31 - 1),
        st.text(max_size=20),
        st.lists(st.integers(0, 99), max_size=5).map(tuple),
    ),
    st.just(Ping()),
)


@given(FRAMES)
@settings(max_examples=200, deadline=None)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(FRAMES, st.data())
@settings(max_examples=200, deadline=None)
def test_a_frame_of_another_length_is_rejected_or_another_valid_frame(
    frame: Frame, data: st.DataObject
) -> None:
    raw = encode(frame)
    changed = raw[: data.draw(st.integers(0, len(raw) - 1))] if data.draw(st.booleans()) else raw + b"\x00"
    with contextlib.suppress(MalformedMessage):
        assert encode(decode(changed)) == changed


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_are_rejected_or_a_valid_frame(raw: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        assert encode(decode(raw)) == raw


def test_lengths_and_counts_that_lie_are_refused() -> None:
    honest = encode(AppendEntries(5, 1, 7, 4, ((b"abc", 8, 5),)))
    many = bytearray(honest)
    many[33:37] = (2**31).to_bytes(4, "little")
    long = bytearray(honest)
    long[53:57] = (2**31).to_bytes(4, "little")
    for raw in (bytes(many), bytes(long)):
        with pytest.raises(MalformedMessage):
            decode(raw)


@pytest.mark.parametrize(("index", "term"), [(9, 5), (7, 5), (8, 6), (8, 0)])
def test_entries_with_gaps_or_impossible_terms_are_refused(index: int, term: int) -> None:
    with pytest.raises(MalformedMessage):
        decode(encode(AppendEntries(5, 1, 7, 4, ((b"abc", index, term),))))


@pytest.mark.parametrize(
    "frame",
    [
        AppendEntries(2**63, 1, 7, 4, ()),
        AppendEntries(5, 2**63, 7, 4, ()),
        AppendReply(2**63, True, 8, 7, 1, True),
        AppendReply(5, True, 2**63, 7, 1, True),
        VoteRequest(2**64 - 1, 7, 4, preliminary=False),
        VoteReply(2**63, granted=False, preliminary=False),
        SnapshotChunk(2**63, 1, 9, 4, 0, b"data"),
        SnapshotReply(2**63, 9, 4, 7, 1, voting=True),
        VoterStatus(1, True, False, (VoterRecord(1, 1, 2**63),)),
    ],
)
def test_a_term_or_index_that_no_cluster_can_reach_is_refused(frame: Frame) -> None:
    """Terms are for ever: one above what the metadata can write down ended every controller, at each start
    again."""
    with pytest.raises(MalformedMessage, match="no term and no index"):
        decode(encode(frame))


def test_a_term_far_ahead_of_ones_own_is_not_believed() -> None:
    """It is no election's: a flipped bit, or forged.  Taken over, it would stand in every vote file and never
    go away."""
    taken, thread = thread_that_passes_on(term=7)
    thread.handle(PeerUp(2, link=1))
    near, far = (VoteRequest(7 + ahead, 1, 1, preliminary=False) for ahead in (1000, TERMS_AHEAD_MAX + 1))
    for message in (far, near):
        thread.handle(Received(2, 1, message))
    assert taken == [near]


def test_what_still_comes_over_a_replaced_connection_is_ignored() -> None:
    """Frames arrive in order within one connection only, and the leader has begun again with a probe."""
    taken, thread = thread_that_passes_on(term=7)
    thread.handle(PeerUp(2, link=1))
    thread.handle(PeerUp(2, link=2))
    old, new = (VoteRequest(7, last_index, 1, preliminary=False) for last_index in (1, 2))
    thread.handle(Received(2, 1, old))
    thread.handle(Received(2, 2, new))
    assert taken == [new]


def thread_that_passes_on(term: int) -> tuple[list[Message], RaftThread]:
    """What its core is given, and a Raft thread that was not started."""
    taken: list[Message] = []
    core = SimpleNamespace(
        term=term,
        receive=lambda _node, message: taken.append(message),
        peer_connected=lambda _node: None,
        peer_disconnected=lambda _node: None,
    )
    return taken, RaftThread(cast(RaftCore, core), die=pytest.fail)
