"""What a checkpoint has: readable, the same text for the same place, and refused where it cannot be meant."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.spark.streaming.offsets import OffsetError, StreamOffset, by_topic, from_json, to_json

ID = bytes(range(16))
KEYS = st.tuples(st.sampled_from(["flights", "a", "version", "Zürich"]), st.integers(0, 12))


def test_an_offset_is_json_that_a_person_can_read() -> None:
    offset = StreamOffset({"flights": ID}, {("flights", 10): 5, ("flights", 2): 23}, {("flights", 2): 0})
    assert json.dumps(to_json(offset)) == (
        '{"version": 1, "topics": {"flights": {"id": "00010203-0405-0607-0809-0a0b0c0d0e0f", '
        '"offsets": {"2": 23, "10": 5}, "begins": {"2": 0}}}}'
    )


@given(
    st.dictionaries(KEYS, st.integers(0, 1 << 62)), st.dictionaries(KEYS, st.integers(0, 9)), st.booleans()
)
def test_the_checkpoint_gives_back_what_was_written(
    positions: dict[tuple[str, int], int], begins: dict[tuple[str, int], int], initial: bool
) -> None:
    begins = {key: at for key, at in begins.items() if key in positions}
    offset = StreamOffset({topic: ID for topic, _ in positions}, positions, begins, initial)
    text = json.dumps(to_json(offset))
    assert from_json(json.loads(text)) == offset
    backwards = dict(reversed(positions.items()))
    assert json.dumps(to_json(StreamOffset(offset.ids, backwards, begins, initial))) == text


def test_a_checkpoint_of_the_official_connector_is_understood() -> None:
    found = from_json({"flights": {"0": 23, "1": 5}, "version": {"0": 1}})
    assert found == StreamOffset({}, {("flights", 0): 23, ("flights", 1): 5, ("version", 0): 1})
    assert not found.is_at(StreamOffset({"flights": ID}, found.positions))  # so that the ids are written


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"version": 3, "topics": {}}, "version 3, and this source knows versions 1 and 2"),
        ({"version": 1}, "no offset of this source"),
        ({"version": 1, "topics": {"t": 5}}, "no offset of this source"),
        ({"version": 1, "topics": {"t": {"id": "x", "offsets": {}}}}, "no offset of this source"),
        ({"version": 1, "topics": {"t": {"offsets": {"0": -1}}}}, "no offset of this source"),
        ({"version": 1, "topics": {"t": {"offsets": {"-1": 1}}}}, "no offset of this source"),
        ({"version": True, "topics": {}}, "version True, and this source knows"),
        ({"version": 1.0, "topics": {}}, "version 1.0, and this source knows"),
        ({"t": {"0": True}}, "no offset of this source"),
        ({"t": {"0": 1 << 63}}, "no offset of this source"),
        ({"t": {"0": 5, "00": 6}}, "no offset of this source"),
        ({"t": {"\u0663": 5}}, "no offset of this source"),
        ({"t": {"9" * 5_000: 5}}, "no offset of this source"),
        ({"t": {str(1 << 31): 5}}, "no offset of this source"),
        ({"logOffset": 5}, "no offset of this source"),
        ([1], "no offset of this source"),
    ],
)
def test_what_is_no_offset_is_refused(tree: object, message: str) -> None:
    with pytest.raises(OffsetError, match=message):
        from_json(tree)


NAMES = st.sampled_from(["version", "topics", "offsets", "begins", "undecided", "cut", "id", "t", "0", "1"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1 << 63) | st.floats() | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(NAMES | st.text(max_size=3), inside),
)


@given(TREES)
def test_whatever_a_checkpoint_has_is_understood_or_refused(tree: object) -> None:
    with contextlib.suppress(OffsetError):
        assert isinstance(from_json(tree), StreamOffset)


def test_numbers_of_partitions_stand_by_topic() -> None:
    assert by_topic({("b", 1): 4, ("a", 11): 3, ("a", 2): 2}) == {"a": {"2": 2, "11": 3}, "b": {"1": 4}}
