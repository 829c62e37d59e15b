"""The server-side assignors (KIP-848), and topic patterns: what every assignment must be, whatever the
group."""

from __future__ import annotations

import random
import re
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidegate.coordinator.group.consumer.assignors import ASSIGNORS, assign_range, assign_uniform
from tidegate.coordinator.group.consumer.events import Partitions
from tidegate.coordinator.group.consumer.patterns import (
    PATTERNS_MAX,
    MatchedTopics,
    UnsupportedPattern,
    is_former_pattern,
    topic_pattern,
)

TOPICS = [UUID(int=number) for number in range(1, 5)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9), max_size=4)
members = st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from(TOPICS)), min_size=1)


def loads(assignment: dict[str, Partitions]) -> list[int]:
    return [len(partitions) for partitions in assignment.values()]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@settings(max_examples=150, deadline=None)
@given(subscriptions=members, topics=counts, later=members)
def test_every_subscribed_partition_goes_to_a_subscribed_member(
    name: str,
    subscriptions: dict[str, frozenset[UUID]],
    topics: dict[UUID, int],
    later: dict[str, frozenset[UUID]],
) -> None:
    assign = ASSIGNORS[name]
    before: dict[str, Partitions] = {}
    for wanted in (subscriptions, later):
        found = assign(wanted, topics, before)
        assert found == assign(dict(reversed(wanted.items())), topics, before)  # deterministic
        assert found.keys() == wanted.keys()
        given_out = [partition for partitions in found.values() for partition in partitions]
        read = set[UUID]().union(*wanted.values())
        assert sorted(given_out) == sorted(
            (t, n) for t, count in topics.items() if t in read for n in range(count)
        )
        assert all(topic in wanted[member] for member, partitions in found.items() for topic, _ in partitions)
        before = found


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.sampled_from("abcdefgh"), min_size=1), st.sets(st.sampled_from("abcdefgh"), min_size=1), counts
)
def test_uniform_is_even_and_moves_no_more_than_it_must(
    first: set[str], second: set[str], topics: dict[UUID, int]
) -> None:
    everything = frozenset(topics)
    before = assign_uniform(dict.fromkeys(first, everything), topics, {})
    after = assign_uniform(dict.fromkeys(second, everything), topics, before)
    for assignment in (before, after):
        assert max(loads(assignment)) - min(loads(assignment)) <= 1
    # As much stays as the sizes allow: with the remainder at its present owners, no member loses more than
    # the excess over its share.
    total = sum(topics.values())
    least, remainder = divmod(total, len(second))
    kept = sum(len(before[member] & after[member]) for member in first & second)
    had = sorted((len(before[member]) for member in first & second), reverse=True)
    assert kept == sum(min(load, least + (place < remainder)) for place, load in enumerate(had))


@settings(max_examples=200, deadline=None)
@given(first=members, second=members, topics=counts)
def test_uniform_leaves_no_move_that_would_narrow_a_gap(
    first: dict[str, frozenset[UUID]], second: dict[str, frozenset[UUID]], topics: dict[UUID, int]
) -> None:
    """Whatever they read: of two members that read a topic, one with a partition of it has at most one more
    than the other."""
    after = assign_uniform(second, topics, assign_uniform(first, topics, {}))
    for owner, partitions in after.items():
        for topic in {topic for topic, _ in partitions}:
            least = min(len(after[member]) for member in second if topic in second[member])
            assert len(after[owner]) <= least + 1


def test_uniform_evens_out_members_that_read_different_topics() -> None:
    one, two = TOPICS[:2]
    found = assign_uniform(
        {"a": frozenset({one}), "b": frozenset({one, two}), "c": frozenset({two})}, {one: 6, two: 3}, {}
    )
    assert sorted(loads(found)) == [3, 3, 3]
    again = assign_uniform({"a": frozenset({one}), "b": frozenset({one, two})}, {one: 6, two: 3}, found)
    assert loads(again) == [5, 4] or loads(again) == [4, 5]
    assert found["b"] & {(one, number) for number in range(6)} <= again["b"] | again["a"]


def test_range_gives_neighbours_and_the_same_run_of_every_topic_of_a_size() -> None:
    one, two = TOPICS[:2]
    found = assign_range(dict.fromkeys("abc", frozenset({one, two})), {one: 7, two: 7}, {})
    assert [sorted(number for topic, number in found[m] if topic == one) for m in "abc"] == [
        [0, 1, 2],
        [3, 4],
        [5, 6],
    ]
    assert {number for topic, number in found["b"] if topic == two} == {3, 4}


# --- patterns -----------------------------------------------------------------------------------------------

PIECES = [
    "a",
    "b",
    "-",
    ".",
    "[ab]",
    "[^a]",
    "(?:",
    "(",
    ")",
    "|",
    "*",
    "+",
    "{2}",
    "{1,2}",
    "{2,}",
    "\\d",
    "\\w",
    "\\.",
]
pieces = st.sampled_from(PIECES)
# Python knows them since 3.11, and RE2, whose patterns these are (KIP-848), does not
POSSESSIVE = re.compile(r"[*+}]\+")


@settings(max_examples=400, deadline=None)
@given(
    st.lists(pieces, max_size=8).map("".join), st.lists(st.text("ab-._1", max_size=6), min_size=1, max_size=8)
)
@example("a*+", [""])
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, names: list[str]) -> None:
    try:
        ours = topic_pattern(pattern)
    except UnsupportedPattern:
        if not POSSESSIVE.search(pattern):
            with pytest.raises(re.error):
                re.compile(pattern)
        return
    assert [ours.matches(name) for name in names] == [
        bool(re.compile(pattern).fullmatch(name)) for name in names
    ]


def test_anchors_and_escapes() -> None:
    for pattern, yes, no in (
        ("^flights-.*$", "flights-eu", "my-flights-eu"),
        ("\\Aa|b\\z", "b", "ab"),
        ("[\\w-]+\\.v[1-3]", "fl-ights.v2", "flights.v4"),
        ("[]a]+?", "]a", "b"),
        ("a{2,3}", "aaa", "aaaa"),
        ("a{x}", "a{x}", "a"),
        ("", "", "a"),
        ("[^\\d]", "x", "1"),
    ):
        assert topic_pattern(pattern).matches(yes), pattern
        assert not topic_pattern(pattern).matches(no), pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "(", "[", "[b-a]", "*a", "a**", "a\\", "(?=a)", "t++", "a{3,2}", "a{1001}", "\\1", "\\Z", "\\C",
        "[[:bogus:]]",
        "\\p{Bogus}", "((((){1000}){1000}){1000}){1000}", "a" * 1_001, "(" * 1_000, "\udcff",
    ],
    ids=lambda pattern: ascii(pattern[:20]),
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """The same that Kafka 4.1.1 refuses, but for the last three."""
    with pytest.raises(UnsupportedPattern):
        topic_pattern(pattern)


def test_patterns_are_those_of_re2() -> None:
    for pattern, yes, no in (
        ("(?i)ORDERS-.*", "orders-eu", "flights"),
        ("[[:alpha:]]+", "orders", "orders1"),
        ("\\Qa.b\\C\\E", "a.b\\C", "axb\\C"),
        ("(?P<area>eu|us)-.*", "eu-orders", "de-orders"),
        ("(?<area>eu|us)-.*", "us-orders", "de-orders"),
        ("orders\\b.*", "orders-eu", "orders2"),
        ("\\pL+", "orders", "orders1"),
        ("\\\\C", "\\C", "x"),
    ):
        assert topic_pattern(pattern).matches(yes), pattern
        assert not topic_pattern(pattern).matches(no), pattern


@pytest.mark.parametrize(
    ("pattern", "former"),
    [
        ("orders-.*", True),
        ("^(eu|us)\\.\\w+$", True),
        ("(?i)orders", False),
        ("[[:alpha:]]", False),
        ("a" * 201, False),
        ("\\pL", False),
    ],
)
def test_patterns_unknown_to_older_coordinators_are_recognised(pattern: str, former: bool) -> None:
    assert is_former_pattern(pattern) is former


def test_each_name_is_held_against_a_pattern_once_while_there_is_time() -> None:
    names = {f"topic-{number}" for number in range(120)} | {"other"}
    matched, left = MatchedTopics(), 0

    def has_time() -> bool:
        nonlocal left
        left -= 1
        return left > 0

    matched.set_names(names)
    turns, left = 1, 50
    while not matched.match_more("topic-.*", has_time):
        assert matched.matching("topic-.*") is None
        turns, left = turns + 1, 50
    assert turns == 3
    assert matched.matching("topic-.*") == names - {"other"}
    matched.set_names(names | {"topic-new"})
    assert matched.matching("topic-.*") is None, "one name in any case"
    assert matched.match_more("topic-.*", lambda: False), "one name in any case"
    assert matched.matching("topic-.*") == (names | {"topic-new"}) - {"other"}
    matched.set_names({"other", "topic-7"})
    assert matched.matching("topic-.*") == {"topic-7"}
    matched.set_names({"other", "topic-7", "topic-8"})
    assert matched.matching("topic-.*") in (None, {"topic-7", "topic-8"})
    assert matched.match_more("topic-.*", lambda: True)
    assert matched.matching("topic-.*") == {
        "topic-7",
        "topic-8",
    }


def test_the_names_that_are_gone_are_dropped_without_looking_again() -> None:
    rng, matched, names = random.Random(5), MatchedTopics(), set[str]()
    for step in range(300):
        names = {name for name in names if rng.random() < 0.7} | {
            f"t{rng.randrange(60)}" for _ in range(rng.randrange(6))
        }
        matched.set_names(names)
        for pattern in ("t.*1", "t[0-4]+"):
            if rng.random() < 0.6:
                matched.match_more(pattern, lambda: rng.random() < 0.8)
            matching = matched.matching(pattern)
            assert matching is None or matching == {
                name for name in names if topic_pattern(pattern).matches(name)
            }, step
        assert len(matched._order) <= max(2 * len(names) + 6, 12)


def test_patterns_in_use_are_remembered_and_of_the_others_a_bounded_number() -> None:
    used = {f"used-{number}" for number in range(3 * PATTERNS_MAX)}
    asked = 0

    def in_use() -> set[str]:
        nonlocal asked
        asked += 1
        return used

    matched = MatchedTopics(in_use)
    matched.set_names(["topic"])
    for pattern in sorted(used):
        matched.match_more(pattern, lambda: True)
    for number in range(50 * PATTERNS_MAX):
        matched.match_more(f"idle-{number}", lambda: True)
        assert matched.count <= 2 * (len(used) + PATTERNS_MAX + 1)
    assert all(matched.is_complete(pattern) for pattern in used)
    assert matched.is_complete(f"idle-{50 * PATTERNS_MAX - 1}")
    assert asked < 30, "it is dear"
    matched.forget()
    assert matched.count == len(used) + PATTERNS_MAX


def test_a_pattern_of_another_version_matches_nothing() -> None:
    matched = MatchedTopics()
    matched.set_names(["topic"])
    assert matched.match_more("(", lambda: False)
    assert matched.matching("(") == set()


def test_a_pattern_that_makes_others_backtrack_for_years_takes_no_time() -> None:
    name = "a" * 249
    assert not topic_pattern("(a+)+b").matches(name)
    assert not topic_pattern("(a|a)*b").matches(name)
    assert topic_pattern(".*.*.*.*.*.*a").matches(name)
