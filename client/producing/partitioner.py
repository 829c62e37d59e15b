"""The partition of a record.

* With a key: murmur2 of the key, sign bit cleared, modulo the number of partitions, as in all Kafka clients.
  Producers in different languages must agree, or the order per key is lost.
* Without a key: the *sticky* partition of the topic, until about `batch_bytes` went there, then another one
  that has a leader (KIP-480, KIP-794): full batches instead of many small ones.
* Or the user's function `(topic, key, value, partitions) -> partition`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

# (topic, key, value, all partition numbers in order) -> partition
Partitioner = Callable[[str, bytes | None, bytes | None, Sequence[int]], int]

MURMUR2_SEED: Final = 0x9747B28C
MURMUR2_FACTOR: Final = 0x5BD1E995
KEYS_CACHED_MAX: Final = 8192
_MASK: Final = 0xFFFFFFFF


@lru_cache(maxsize=KEYS_CACHED_MAX)
def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, unsigned.  Cached: keys repeat, and a miss costs some
    microseconds."""
    length = len(data)
    value = MURMUR2_SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * MURMUR2_FACTOR & _MASK
        part = (part ^ part >> 24) * MURMUR2_FACTOR & _MASK
        value = (value * MURMUR2_FACTOR & _MASK) ^ part
    if length != whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * MURMUR2_FACTOR & _MASK
    value = (value ^ value >> 13) * MURMUR2_FACTOR & _MASK
    return value ^ value >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a keyed record: the same in every Kafka client."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyChooser:
    """The partition for records without a key: one at a time per topic.  `draw` gives floats in [0, 1)."""

    def __init__(self, batch_bytes: int, draw: Callable[[], float]) -> None:
        self._batch_bytes = batch_bytes
        self._draw = draw
        # topic -> (partition, bytes sent there since it was chosen)
        self._current: dict[str, tuple[int, int]] = {}

    def choose(self, topic: str, available: Sequence[int], size_bytes: int) -> int:
        """One of the `available` partitions (those with a leader, or all when none has one)."""
        partition, used = self._current.get(topic, (-1, 0))
        if partition not in available or used >= self._batch_bytes:
            others = [other for other in available if other != partition] or list(available)
            partition, used = others[int(self._draw() * len(others))], 0
        self._current[topic] = (partition, used + size_bytes)
        return partition

    def choose_run(
        self, topic: str, available: Sequence[int], ends: Sequence[int], at: int
    ) -> tuple[int, int]:
        """The partition of record `at`, and the record from which on another one is chosen.  `ends`: where
        each record would end, were all in one buffer."""
        partition = self.choose(topic, available, ends[at] - (ends[at - 1] if at else 0))
        _, used = self._current[topic]
        until = at + 1
        if used < self._batch_bytes:
            until = min(len(ends), bisect_left(ends, ends[at] + self._batch_bytes - used, until) + 1)
            self._current[topic] = (partition, used + ends[until - 1] - ends[at])
        return partition, until
