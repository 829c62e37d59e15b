"""Range reads get on in the order in which they came; a paused reader delays no other, and memory stays
bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.node.data.range_turns import MOVING_BYTES_S, Looks, RangeTurns, Turn
from tidegate.wire.errors import ErrorCode, KafkaError


class Reads:
    """Named reads, and the order in which they got their turns after a wait."""

    def __init__(self, **limits: int) -> None:
        self.turns = RangeTurns(**limits)
        self.granted: list[str] = []
        self.by_name: dict[str, Turn] = {}

    def enter(self, name: str, now: float = 0.0) -> Turn:
        def note() -> None:
            self.granted.append(name)

        self.by_name[name] = self.turns.enter(note, name, now)
        return self.by_name[name]

    def active(self) -> str:
        return "".join(sorted(name for name, turn in self.by_name.items() if turn.is_active))


def test_reads_wait_in_the_order_in_which_they_came() -> None:
    reads = Reads(active_max=2)
    for name in "abcde":
        reads.enter(name)
    assert (reads.active(), reads.turns.waiting) == ("ab", 3)
    reads.turns.leave(reads.by_name["d"], 0)  # given up in the queue
    reads.turns.leave(reads.by_name["a"], 0)
    reads.turns.leave(reads.by_name["b"], 0)
    assert (reads.active(), reads.granted) == ("ce", ["c", "e"])


def test_the_queue_is_bounded() -> None:
    reads = Reads(active_max=1, waiting_max=2)
    for name in "abc":
        reads.enter(name)
    with pytest.raises(KafkaError, match="2 wait for their turn") as caught:
        reads.enter("d")
    assert caught.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_paused_reader_lets_others_read_and_queues_again() -> None:
    reads = Reads(active_max=1)
    a, b = reads.enter("a"), reads.enter("b")
    assert reads.turns.hold(a, 1000)
    reads.turns.park(a, 1)
    assert reads.active() == "b"
    reads.turns.sent(a, 1000, 2)
    assert reads.active() == "b"
    reads.turns.leave(b, 3)
    assert (reads.active(), reads.granted) == ("a", ["b", "a"])


def test_those_that_have_held_their_chunks_longest_are_ended_as_far_as_there_is_no_room() -> None:
    reads = Reads(active_max=8, held_bytes_max=3500)
    a, b, c, d, e, f = (reads.enter(name) for name in "abcdef")
    for turn in (a, b, c):
        assert reads.turns.hold(turn, 1000)
    for turn in (c, b, a):
        reads.turns.park(turn, 1)
    assert reads.turns.hold(d, 500)
    assert reads.turns.parked == (c, b, a)
    assert (reads.turns.lacks_room, reads.turns.to_end("abc")) == (False, []), "there is room beside them"
    assert not reads.turns.hold(e, 1000)
    assert reads.turns.lacks_room
    assert [reads.turns.to_end(still) for still in ("abc", "ab", "", "d")] == [["c"], ["b"], [], []]
    assert not reads.turns.hold(f, 1)
    assert reads.turns.to_end("abc") == ["c", "b"], "each that waits has room then"
    assert reads.granted == []
    reads.turns.leave(c, 2)
    assert (reads.granted, reads.turns.held_bytes) == (["e"], 3500)
    assert reads.turns.to_end("ab") == ["b"]


def test_a_reader_of_several_ranges_is_ended_once() -> None:
    turns = RangeTurns(held_bytes_max=2000)
    one, two, other = (turns.enter(lambda: None, reader, 0) for reader in ("r", "r", "s"))
    for turn in (one, two):
        assert turns.hold(turn, 1000)
        turns.park(turn, 0)
    assert not turns.hold(other, 2000)
    assert turns.to_end("r") == ["r"]


@pytest.mark.parametrize(
    ("readers", "before", "after", "still"),
    [
        ("a", {"a": 100}, {"a": 100}, "a"),
        ("a", {"a": 100}, {"a": 99 + 2 * MOVING_BYTES_S}, "a"),
        ("a", {"a": 100}, {"a": 100 + 2 * MOVING_BYTES_S}, ""),
        ("aab", {"a": 0, "b": 0}, {"a": 4 * MOVING_BYTES_S - 1, "b": 2 * MOVING_BYTES_S}, "a"),
        ("aab", {"a": 0, "b": 0}, {"a": 4 * MOVING_BYTES_S, "b": 0}, "b"),
        ("ab", {"a": 0}, {"b": 0}, ""),  # gone, and another one that has just come
        ("", {}, {}, ""),
    ],
)
def test_a_reader_stands_still_whose_connection_hardly_moves_for_each_of_its_chunks(
    readers: str, before: dict[str, int], after: dict[str, int], still: str
) -> None:
    turns, looks = RangeTurns(), Looks(2.0)
    parked = [turns.enter(lambda: None, reader, 0) for reader in readers]
    assert looks.standing_still(10.0, parked, before) == set()
    assert looks.standing_still(12.0, parked, after) == set(still)


def test_a_reader_is_looked_at_for_the_whole_time() -> None:
    """Its bytes are acknowledged now and then, or it had no chunk to take, or no look was taken."""
    turns, looks = RangeTurns(), Looks(3.0)
    a, b = (turns.enter(lambda: None, reader, 0) for reader in "ab")
    enough = 4 * MOVING_BYTES_S
    found = [
        looks.standing_still(now, parked, {"a": a_taken, "b": 0})
        for now, parked, a_taken in (
            (1.0, [a], 0), (2.0, [a], 0), (3.5, [a, b], enough),  # b's chunk is new
            (4.0, [a, b], enough), (6.4, [a, b], enough), (6.5, [b, a], enough), (7.0, [b], enough),
            (90.0, [a, b], enough), (92.9, [a, b], enough), (93.0, [a, b], enough),
            (95.0, [b], enough), (96.0, [a, b], enough),  # a has waited for room
        )
    ]  # fmt: skip
    assert found == [
        set(), set(), set(), set(), {"a"}, {"a", "b"}, {"b"}, set(), set(), {"a", "b"}, {"b"}, {"b"}
    ]  # fmt: skip


def test_the_chunks_of_active_reads_count() -> None:
    reads = Reads(active_max=3, held_bytes_max=1500)
    a, b, c = (reads.enter(name) for name in "abc")
    assert reads.turns.hold(a, 1000)
    assert not reads.turns.hold(b, 1000)
    assert not reads.turns.hold(c, 100), "it would get in before b for ever"
    assert not b.may_read
    reads.turns.sent(a, 1000, 1)
    assert reads.granted == ["b", "c"]
    assert reads.turns.hold(b, 900), "the log has changed meanwhile"
    assert reads.turns.held_bytes == 1100


def test_a_read_without_room_gets_it_when_one_that_pauses_sends_or_ends() -> None:
    reads = Reads(active_max=2, held_bytes_max=1500)
    a, b = reads.enter("a"), reads.enter("b")
    assert reads.turns.hold(a, 1000)
    assert not reads.turns.hold(b, 1000)
    reads.turns.park(a, 1)
    assert (b.may_read, reads.turns.held_bytes) == (False, 1000), "its chunk is there until it is sent"
    reads.turns.sent(a, 1000, 2)
    assert a.is_active
    assert (b.may_read, reads.turns.held_bytes) == (True, 1000)
    assert not reads.turns.hold(a, 1000)
    reads.turns.park(b, 3)
    reads.turns.leave(b, 4)
    assert (a.may_read, reads.turns.held_bytes) == (True, 1000)


def test_a_chunk_that_is_larger_than_the_bound_is_held_alone() -> None:
    reads = Reads(active_max=2, held_bytes_max=100)
    a, b = reads.enter("a"), reads.enter("b")
    assert reads.turns.hold(a, 1000)
    assert not reads.turns.hold(b, 1)
    reads.turns.leave(a, 1)
    assert b.may_read


def test_a_read_that_owes_for_its_quota_holds_nothing_and_is_not_ended() -> None:
    reads = Reads(active_max=3, held_bytes_max=100)
    a, b, c = (reads.enter(name) for name in "abc")
    reads.turns.park(a, 1)
    assert reads.turns.hold(b, 1000)
    assert not reads.turns.hold(c, 1000)
    assert reads.turns.to_end("abc") == []


def test_a_long_read_lets_waiting_reads_go_first() -> None:
    reads = Reads(active_max=1, turn_bytes=100)
    a = reads.enter("a")
    reads.turns.sent(a, 500, 1)
    assert a.is_active  # no read waits
    b = reads.enter("b")
    reads.turns.sent(a, 1, 2)
    assert reads.active() == "b"
    reads.turns.leave(b, 3)
    assert reads.active() == "a"


def test_progress_is_what_any_read_makes() -> None:
    reads = Reads(active_max=1)
    a = reads.enter("a", 1.0)
    reads.enter("b", 5.0)
    assert reads.turns.progress_at == 5.0  # the queue begins
    reads.enter("c", 9.0)
    assert reads.turns.progress_at == 5.0
    reads.turns.sent(a, 1, 12.0)
    assert reads.turns.progress_at == 12.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "hold", "park", "sent"]), st.integers(0, 7)), max_size=80
    )
)
def test_bounds_hold_and_no_turn_stays_free(steps: list[tuple[str, int]]) -> None:
    turns = RangeTurns(active_max=3, waiting_max=3, held_bytes_max=25, turn_bytes=15)
    reads: list[Turn] = []
    ignore: Callable[[], None] = lambda: None  # noqa: E731
    for step, number in steps:
        if step == "enter":
            try:
                reads.append(turns.enter(ignore, "reader", 0))
            except KafkaError:
                assert turns.waiting == 3
        elif reads:
            read = reads[number % len(reads)]
            match step:
                case "leave":
                    turns.leave(read, 0)
                    reads.remove(read)
                case "hold" if read.may_read:
                    turns.hold(read, 5 * number)
                case "park":
                    turns.park(read, 0)
                case "sent" if read.may_read or read.is_parked:
                    turns.sent(read, 10, 0)
        turns.validate()
        held = [read.held_bytes for read in reads if read.held_bytes]
        assert turns.held_bytes == sum(held)
        assert sum(held) <= 25 or len(held) == 1
    for read in reads:
        turns.leave(read, 0)
    assert (turns.active, turns.waiting, turns.held_bytes) == (0, 0, 0)
