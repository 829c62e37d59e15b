"""The fixed schema: what is encoded comes back, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.controller.raft.messages import (
    AppendEntries,
    AppendReply,
    Frame,
    Hello,
    MalformedMessage,
    Ping,
    SnapshotChunk,
    SnapshotReply,
    Standing,
    VoteReply,
    VoteRequest,
    decode,
    encode,
)

U64 = st.integers(0, 2**64 - 1)
JOURNAL = st.integers(1, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    term = draw(st.integers(1, 2**64 - 1))
    previous = draw(st.integers(0, 2**63))
    commands = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
    entries = tuple((command, previous + 1 + n, draw(st.integers(1, term))) for n, command in enumerate(commands))
    return AppendEntries(term, draw(U64), previous, draw(U64), entries)


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    voters = draw(st.lists(st.integers(0, 99), max_size=5, unique=True))
    roster = tuple((voter, draw(JOURNAL), draw(U64)) for voter in voters)
    return Standing(draw(JOURNAL), draw(st.booleans()), draw(st.booleans()), roster)


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    data = draw(st.binary(min_size=1, max_size=50))
    position = draw(st.integers(0, 2**40))
    return SnapshotChunk(draw(U64), draw(U64), draw(U32), position + len(data) + draw(st.integers(0, 99)), position, data)


FRAMES: st.SearchStrategy[Frame] = st.one_of(
    appends(),
    chunks(),
    st.builds(AppendReply, U64, st.booleans(), U64, U64, JOURNAL, st.booleans()),
    st.builds(VoteRequest, U64, U64, U64, st.booleans()),
    st.builds(VoteReply, U64, st.booleans(), st.booleans()),
    st.builds(SnapshotReply, U64, U32, U64, U64, JOURNAL, st.booleans()),
    standings(),
    st.builds(Hello, st.integers(0, 2**31 - 1), st.text(max_size=20), st.lists(st.integers(0, 99), max_size=5).map(tuple)),
    st.just(Ping()),
)


@given(FRAMES)
@settings(max_examples=200, deadline=None)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    assert decode(encode(frame)) == frame


@given(FRAMES, st.data())
@settings(max_examples=200, deadline=None)
def test_a_shortened_or_lengthened_frame_is_refused_or_is_another_whole_frame(frame: Frame, data: st.DataObject) -> None:
    raw = encode(frame)
    changed = raw[: data.draw(st.integers(0, len(raw) - 1))] if data.draw(st.booleans()) else raw + b"\x00"
    try:
        assert encode(decode(changed)) == changed
    except MalformedMessage:
        pass


@given(st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_arbitrary_bytes_are_refused_or_are_exactly_what_the_schema_encodes(raw: bytes) -> None:
    try:
        assert encode(decode(raw)) == raw
    except MalformedMessage:
        pass


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
