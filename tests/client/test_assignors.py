"""Shares are those of other clients in the same group, and their messages are readable both ways."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tidegate.client.requests.assignors import (
    ASSIGNORS,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tidegate.wire.errors import KafkaError

NAMES = st.sampled_from(["a", "b", "c", "d"])
COUNTS = st.dictionaries(NAMES, st.integers(1, 9))
MEMBERS = st.dictionaries(
    st.text("xyz", min_size=1, max_size=3), st.sets(NAMES, min_size=1), min_size=1, max_size=5
)


def reference(
    assignor: Any, counts: dict[str, int], members: dict[str, set[str]]
) -> dict[str, dict[str, list[int]]]:
    cluster = SimpleNamespace(
        partitions_for_topic=lambda topic: set(range(counts[topic])) if topic in counts else None
    )
    entries = [
        SimpleNamespace(
            member_id=member, group_instance_id=None, metadata=SimpleNamespace(topics=sorted(topics))
        )
        for member, topics in members.items()
    ]
    found = assignor.assign(cluster, entries)
    return {
        member: {topic: list(numbers) for topic, numbers in share.assigned_partitions if numbers}
        for member, share in found.items()
    }


def ours(name: str, counts: dict[str, int], members: dict[str, set[str]]) -> dict[str, dict[str, list[int]]]:
    return ASSIGNORS[name].assign(
        counts, {member: Subscription(tuple(sorted(topics))) for member, topics in members.items()}
    )


@given(COUNTS, MEMBERS)
def test_range_shares_equal_those_of_kafka_python(
    counts: dict[str, int], members: dict[str, set[str]]
) -> None:
    assert ours("range", counts, members) == reference(RangePartitionAssignor, counts, members)


@given(COUNTS, MEMBERS)
def test_roundrobin_shares_equal_those_of_kafka_python(
    counts: dict[str, int], members: dict[str, set[str]]
) -> None:
    same = {member: {"a", "b", "c"} for member in members}  # kafka-python fails on subscriptions that differ
    assert ours("roundrobin", counts, same) == reference(RoundRobinPartitionAssignor, counts, same)


@given(st.sampled_from(sorted(ASSIGNORS)), COUNTS, MEMBERS)
def test_every_partition_has_exactly_one_owner_that_subscribed_to_it(
    name: str, counts: dict[str, int], members: dict[str, set[str]]
) -> None:
    owners: dict[tuple[str, int], str] = {}
    for member, share in ours(name, counts, members).items():
        for topic, numbers in share.items():
            assert topic in members[member]
            for number in numbers:
                assert owners.setdefault((topic, number), member) == member
    wanted = {topic for topics in members.values() for topic in topics}
    assert set(owners) == {(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}


def test_static_members_go_first_and_keep_partitions_with_new_member_ids() -> None:
    def share(member_id: str) -> dict[str, list[int]]:
        members = {
            member_id: Subscription(("a",), group_instance_id="i-1"),
            "dynamic": Subscription(("a",)),
        }
        return ASSIGNORS["range"].assign({"a": 3}, members)[member_id]

    assert share("aaa") == share("zzz") == {"a": [0, 1]}


@given(
    st.sets(NAMES), st.binary(max_size=10), st.dictionaries(NAMES, st.lists(st.integers(0, 99), max_size=4))
)
def test_subscriptions_and_assignments_survive_the_wire(
    topics: set[str], user_data: bytes, owned: dict[str, list[int]]
) -> None:
    subscription = Subscription(tuple(sorted(topics)), user_data, owned)
    assert decode_subscription(encode_subscription(subscription)) == subscription
    assert decode_assignment(encode_assignment(owned)) == owned
    assert decode_assignment(b"") == {}


def test_messages_are_those_of_kafka_python() -> None:
    read = ConsumerProtocolSubscription.decode(encode_subscription(Subscription(("a", "b"), b"u")))
    assert (list(read.topics), bytes(read.user_data)) == (["a", "b"], b"u")
    written = bytes(ConsumerProtocolAssignment(0, [("a", [1, 2])], b"").encode())
    assert decode_assignment(written) == {"a": [1, 2]}


@given(st.binary(max_size=60))
def test_garbage_of_another_member_is_refused_and_never_crashes(garbage: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(KafkaError):
            decode(garbage)


def test_a_huge_count_is_refused_before_it_is_believed() -> None:
    with pytest.raises(KafkaError, match="consumer protocol"):
        decode_assignment(b"\x00\x00\x7f\xff\xff\xff")


COOP = ASSIGNORS["cooperative-sticky"]
Shares = dict[str, dict[str, list[int]]]


def rebalanced(
    counts: dict[str, int], members: dict[str, set[str]], held: Shares, generation: int = 1
) -> tuple[Shares, int]:
    """Rebalances until nothing changes any more; every member gives up what is taken from it before it joins
    again."""
    for round_ in range(1, 10):
        wanted = {
            member: Subscription(tuple(sorted(topics)), owned=held.get(member, {}), generation=generation)
            for member, topics in members.items()
        }
        given = COOP.assign(counts, wanted)
        owned_elsewhere = {
            (other, topic, number)
            for other, share in held.items() if other in members
            for topic, numbers in share.items() if topic in members[other]
            for number in numbers if number < counts.get(topic, 0)
        }  # fmt: skip
        for member, share in given.items():
            for topic, numbers in share.items():
                for number in numbers:
                    owners = {other for other, t, n in owned_elsewhere if (t, n) == (topic, number)}
                    assert owners <= {member}, "given away before its owner has given it up"
        if given == held:
            return given, round_
        held = given
    raise AssertionError("it does not come to rest")


def places(share: dict[str, list[int]]) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in share.items() for number in numbers}


@given(COUNTS, MEMBERS, MEMBERS)
def test_cooperative_partitions_are_revoked_before_reassigned_and_converge(
    counts: dict[str, int], before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    """KIP-429, for any members that join and leave with any subscriptions."""
    held, _ = rebalanced(counts, before, {})
    shares, _ = rebalanced(counts, after, held)
    wanted = {
        (topic, number)
        for topics in after.values()
        for topic in topics
        for number in range(counts.get(topic, 0))
    }
    assert sorted(place for share in shares.values() for place in places(share)) == sorted(wanted)
    assert all(topic in after[member] for member, share in shares.items() for topic in share)


@given(COUNTS, st.integers(1, 6), st.integers(1, 6))
def test_cooperative_shares_are_even_and_move_no_more_than_they_must(
    counts: dict[str, int], before: int, after: int
) -> None:
    topics = set(counts)
    held, _ = rebalanced(counts, {f"m{n}": topics for n in range(before)}, {})
    shares, rounds = rebalanced(counts, {f"m{n}": topics for n in range(after)}, held)
    sizes = [len(places(share)) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    assert rounds <= 3
    stayed = sum(len(places(held[member]) & places(shares[member])) for member in set(held) & set(shares))
    total = sum(counts.values())
    if after >= before:  # what the old members keep is all that their new shares hold
        assert stayed == sum(len(places(shares[member])) for member in held)
    else:
        assert stayed == total - sum(len(places(held[member])) for member in set(held) - set(shares))


def test_of_two_that_claim_a_partition_the_later_generation_holds_it() -> None:
    old = Subscription(("a",), owned={"a": [0]}, generation=3)
    new = Subscription(("a",), owned={"a": [0]}, generation=4)
    assert COOP.assign({"a": 1}, {"one": old, "two": new}) == {"one": {}, "two": {"a": [0]}}
    assert COOP.assign({"a": 1}, {"one": new, "two": new}) == {"one": {"a": [0]}, "two": {}}, (
        "neither, so any member"
    )


def test_what_a_member_owns_and_since_when_can_be_read_by_others() -> None:
    data = encode_subscription(Subscription(("a", "b"), owned={"a": [1, 2]}, generation=7))
    assert decode_subscription(data) == Subscription(("a", "b"), owned={"a": [1, 2]}, generation=7)
    theirs = ConsumerProtocolSubscription.decode(data)
    assert [(each.topic, list(each.partitions)) for each in theirs.owned_partitions] == [("a", [1, 2])]
