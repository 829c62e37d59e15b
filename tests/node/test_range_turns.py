"""Range reads get on in the order in which they came; a paused reader delays no other, and memory stays
bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.node.data.range_turns import RangeTurns, Turn
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

        self.by_name[name] = self.turns.enter(note, now)
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
    reads.turns.park(a, 1000, 1)
    assert reads.active() == "b"
    reads.turns.sent(a, 1000, 2)
    assert reads.active() == "b"
    reads.turns.leave(b, 3)
    assert (reads.active(), reads.granted) == ("a", ["b", "a"])


def test_parked_chunks_are_bounded() -> None:
    reads = Reads(active_max=2, parked_bytes_max=1500)
    a, b = reads.enter("a"), reads.enter("b")
    reads.enter("c")
    reads.turns.park(a, 1000, 1)
    reads.turns.park(b, 1000, 1)
    assert reads.active() == "bc"


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
    st.lists(st.tuples(st.sampled_from(["enter", "leave", "park", "sent"]), st.integers(0, 7)), max_size=80)
)
def test_bounds_hold_and_no_turn_stays_free(steps: list[tuple[str, int]]) -> None:
    turns = RangeTurns(active_max=2, waiting_max=3, parked_bytes_max=25, turn_bytes=15)
    reads: list[Turn] = []
    ignore: Callable[[], None] = lambda: None  # noqa: E731
    for step, number in steps:
        if step == "enter":
            try:
                reads.append(turns.enter(ignore, 0))
            except KafkaError:
                assert turns.waiting == 3
        elif reads:
            read = reads[number % len(reads)]
            match step:
                case "leave":
                    turns.leave(read, 0)
                    reads.remove(read)
                case "park":
                    turns.park(read, 10, 0)
                case "sent" if read.is_active or read.parked_bytes:
                    turns.sent(read, 10, 0)
        turns.validate()
    for read in reads:
        turns.leave(read, 0)
    assert (turns.active, turns.waiting) == (0, 0)
