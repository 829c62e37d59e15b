"""Keys go where every other Kafka client would put them; records without a key fill one batch after the
other."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference
from tidegate.client.producing.partitioner import StickyChooser, murmur2, partition_of_key


@given(st.binary(max_size=200))
def test_murmur2_is_that_of_other_clients(key: bytes) -> None:
    assert murmur2(key) == reference(key)


def test_murmur2_knows_the_vectors_of_the_java_client() -> None:
    vectors = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"abc": 479470107,
    }
    for key, signed in vectors.items():
        assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_has_one_partition_within_range(key: bytes, count: int) -> None:
    assert partition_of_key(key, count) == (reference(key) & 0x7FFFFFFF) % count


def test_records_without_a_key_stay_until_a_batch_is_full_and_then_move() -> None:
    chooser = StickyChooser(1000, random.Random(1).random)
    chosen = [chooser.choose("t", [0, 1, 2], 100) for _ in range(100)]
    runs = [chosen[start : start + 10] for start in range(0, 100, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(earlier[0] != later[0] for earlier, later in itertools.pairwise(runs))


def test_a_partition_that_lost_its_leader_is_left() -> None:
    chooser = StickyChooser(1000, random.Random(1).random)
    first = chooser.choose("t", [0, 1], 1)
    assert chooser.choose("t", [1 - first], 1) == 1 - first


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.lists(st.integers(1, 9), max_size=9))
def test_runs_of_records_go_where_single_ones_go(sizes: list[int], pieces: list[int]) -> None:
    single, runs = (StickyChooser(1000, random.Random(1).random) for _ in range(2))
    wanted = [single.choose("t", [0, 1, 2], size) for size in sizes]
    found: list[int] = []
    for piece in (*pieces, len(sizes)):
        some = sizes[len(found) : len(found) + piece]
        ends, at = list(itertools.accumulate(some)), 0
        while at < len(ends):
            partition, until = runs.choose_run("t", [0, 1, 2], ends, at)
            found += [partition] * (until - at)
            at = until
    assert found == wanted
