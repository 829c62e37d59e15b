"""Which state partition is responsible for a key must be what Kafka says, for as long as the cluster
lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.node.cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, partition_for, settings

from .test_configuration import loaded


@pytest.mark.parametrize(
    ("text", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Aa", 2112),
        ("BB", 2112),  # the well-known collision
        # String.hashCode of this word is Integer.MIN_VALUE: abs() of it is negative
        ("polygenelubricants", -(2**31)),
        ("grün", 3185949),
        ("\U0001f600", 1772899),  # two UTF-16 units: 0xD83D * 31 + 0xDE00
    ],
)
def test_the_hash_is_java_string_hash_code(text: str, java_hash: int) -> None:
    assert partition_for(text, 50) == (java_hash & 0x7FFFFFFF) % 50


def reference(text: str) -> int:
    """Java's definition, over UTF-16 units, as a signed 32-bit number."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in (int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)):
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


@given(st.text(max_size=40), st.integers(1, 100))
def test_every_key_has_exactly_one_partition(key: str, count: int) -> None:
    found = partition_for(key, count)
    assert 0 <= found < count
    assert found == (reference(key) & 0x7FFFFFFF) % count


@pytest.mark.parametrize("topic", [TRANSACTION_STATE, CONSUMER_OFFSETS])
def test_state_topics_are_safe_with_any_defaults_for_other_topics(topic: str) -> None:
    configuration = loaded(
        "transaction.state.log.min.isr=2", "offsets.topic.min.isr=2", min__insync__replicas=1
    )
    partitions, replicas, config = settings(topic, configuration)
    assert (partitions, replicas) == (16, 3)
    assert config == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "unclean.leader.election.enable": "false",
        "segment.bytes": "104857600",
        "flush.policy": "always",
        "min.insync.replicas": "2",
    }
