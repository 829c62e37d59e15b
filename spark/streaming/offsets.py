"""Where a stream is: what Spark writes to its checkpoint, as JSON that a person can read.

    {"version": 1, "topics": {"flights": {"id": "7b1c...", "offsets": {"0": 23, "1": 5}, "begins": {"1": 0}}}}

`offsets` has the next offset of every partition, `id` the topic's id: a topic that is made again under the
same name is another one.  `begins` has the partitions that the micro-batch with this end was the first to
read, and where they began.  So a micro-batch that is run again reads the same records, although nothing else
remembers where it began.  `"initial": true` marks where a new query begins, before its first micro-batch.

Spark compares offsets by their text: topics stand in order of their names, partitions of their numbers.

A stream whose micro-batches end at cuts has version 2, which says of each partition what its cut leaves out,
the first offset by producer id:

    {"version": 2, "cut": {"id": "5f0c...", "takenMs": 1764000000000}, "topics": {"flights": {"id": "7b1c...",
     "offsets": {"0": 23}, "undecided": {"0": {"4711": 17}}}}}

The next micro-batch reads the records of such a transaction below the offset as soon as it is committed.
`beginsUndecided` is to `begins` what `undecided` is to `offsets`.

The offsets of Spark's Kafka connector, `{"flights": {"0": 23}}`, are understood too: its checkpoint may be
continued.  They have no topic ids, so the ids of the present topics are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn
from uuid import UUID

VERSION: Final = 1
VERSION_AT_CUT: Final = 2
PARTITION_MAX: Final = (1 << 31) - 1
OFFSET_MAX: Final = (1 << 63) - 1  # and that of the producers' ids
DIGITS_MAX: Final = 19

Key = tuple[str, int]  # topic, partition
Json = dict[str, object]
Undecided = Mapping[Key, Mapping[int, int]]  # by partition: first offset by producer id


class OffsetError(ValueError):
    """A checkpoint whose offsets this source cannot continue; the message says why."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of each partition; `ids` lacks topics whose id is not known.  `cut`: (id, taken_ms) of
    the cut at which it stands, if the stream reads at cuts."""

    ids: Mapping[str, bytes]
    positions: Mapping[Key, int]
    begins: Mapping[Key, int] = field(default_factory=dict)
    initial: bool = False
    cut: tuple[str, int] | None = None
    undecided: Undecided = field(default_factory=dict)
    begins_undecided: Undecided = field(default_factory=dict)

    def is_at(self, other: StreamOffset) -> bool:
        """Whether the two are at the same place, wherever the last micro-batch began."""
        return self.ids == other.ids and self.positions == other.positions


def to_json(offset: StreamOffset) -> Json:
    topics: dict[str, dict[str, object]] = {}
    for name in sorted({topic for topic, _ in offset.positions} | set(offset.ids)):
        entry = topics[name] = {}
        if name in offset.ids:
            entry["id"] = str(UUID(bytes=offset.ids[name]))
        entry["offsets"] = _of_topic(offset.positions, name)
        begins = _of_topic(offset.begins, name)
        if begins:
            entry["begins"] = begins
        if undecided := _undecided_of_topic(offset.undecided, name):
            entry["undecided"] = undecided
        if undecided := _undecided_of_topic(offset.begins_undecided, name):
            entry["beginsUndecided"] = undecided
    if offset.cut is None:
        tree: Json = {"version": VERSION, "topics": topics}
    else:
        cut = {"id": offset.cut[0], "takenMs": offset.cut[1]}
        tree = {"version": VERSION_AT_CUT, "cut": cut, "topics": topics}
    if offset.initial:
        tree["initial"] = True
    return tree


def by_topic(numbers: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    """As `{"flights": {"0": 23}}`, in order."""
    return {name: _of_topic(numbers, name) for name in sorted({topic for topic, _ in numbers})}


def _of_topic(numbers: Mapping[Key, int], name: str) -> dict[str, int]:
    return {
        str(partition): numbers[topic, partition] for topic, partition in sorted(numbers) if topic == name
    }


def _undecided_of_topic(undecided: Undecided, name: str) -> dict[str, dict[str, int]]:
    return {
        str(partition): {str(producer_id): first for producer_id, first in sorted(firsts.items())}
        for (topic, partition), firsts in sorted(undecided.items())
        if topic == name and firsts
    }


def from_json(tree: object) -> StreamOffset:
    """Raises OffsetError."""
    if not isinstance(tree, dict):
        _refuse(tree)
    version = tree.get("version")
    if isinstance(version, dict) or version is None:
        return StreamOffset({}, _numbers(tree))  # Spark's Kafka connector; a topic may be called "version"
    if type(version) is not int or version not in (VERSION, VERSION_AT_CUT):
        raise OffsetError(
            f"the checkpoint's offsets have version {version!r}, and this source knows versions {VERSION} "
            f"and {VERSION_AT_CUT}: a newer version of Tidegate wrote them"
        )
    topics = tree.get("topics")
    if not isinstance(topics, dict) or not all(isinstance(entry, dict) for entry in topics.values()):
        _refuse(tree)
    return StreamOffset(
        ids={name: _id(entry["id"]) for name, entry in topics.items() if "id" in entry},
        positions=_numbers({name: entry.get("offsets", {}) for name, entry in topics.items()}),
        begins=_numbers({name: entry.get("begins", {}) for name, entry in topics.items()}),
        initial=tree.get("initial") is True,
        cut=None if version == VERSION else _cut(tree.get("cut")),
        undecided=_undecided({name: entry.get("undecided", {}) for name, entry in topics.items()}),
        begins_undecided=_undecided(
            {name: entry.get("beginsUndecided", {}) for name, entry in topics.items()}
        ),
    )


def _cut(tree: object) -> tuple[str, int]:
    if not isinstance(tree, dict) or type(tree.get("takenMs")) is not int:
        _refuse(tree)
    return str(tree.get("id")), tree["takenMs"]


def _undecided(topics: Mapping[str, object]) -> dict[Key, dict[int, int]]:
    found: dict[Key, dict[int, int]] = {}
    for name, partitions in topics.items():
        if not isinstance(partitions, dict):
            _refuse(topics)
        for (partition, producer_id), first in _numbers(partitions, OFFSET_MAX).items():
            found.setdefault((name, _index(partition, PARTITION_MAX)), {})[producer_id] = first
    return found


def _numbers(topics: Mapping[str, object], index_max: int = PARTITION_MAX) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for name, partitions in topics.items():
        if not isinstance(partitions, dict):
            _refuse(topics)
        for partition, offset in partitions.items():
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                _refuse({name: partitions})
            found[name, _index(partition, index_max)] = offset
    return found


def _index(text: str, most: int) -> int:
    """Written as this source does, so that no two texts are one number."""
    number = int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else -1
    if not 0 <= number <= most or str(number) != text:
        _refuse(text)
    return number


def _id(text: object) -> bytes:
    try:
        return UUID(str(text)).bytes
    except ValueError:
        _refuse(text)


def _refuse(what: object) -> NoReturn:
    raise OffsetError(f"the checkpoint has {str(what)[:200]!r}, which is no offset of this source")
