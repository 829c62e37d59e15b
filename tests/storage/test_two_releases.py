"""A further field of a durable file takes two releases, and each of them keeps the rules: a walk of both.

The first release reads the new version and drops the field; nothing holds it in memory, because each restart
would lose it.  The next one holds it, with a default that says "an older version wrote this", and writes it.
What a release edits is made here of the product's own text.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from tidegate.storage.checkpoint import RowShapes, encode_checkpoint, parse_checkpoint
from tidegate.storage.producers import producer_snapshot, producer_state
from tidegate.storage.producers.producer_state import BatchMetadata

from .test_formats import DECLARED, Format, faults
from .test_producer_state import fields_lost

TOO_EARLY = "version 2 is written: no release reads it yet (LATEST_RELEASE_READS)"


def edited(module: ModuleType, name: str, *edits: tuple[str, str]) -> Any:
    """The module after these replacements of text, each of which is made, under another name."""
    text = inspect.getsource(module)
    for old, new in edits:
        assert old in text, f"{module.__name__} has no {old!r} any more"
        text = text.replace(old, new)
    made = ModuleType(f"{module.__package__}.{name}")
    made.__package__ = module.__package__
    sys.modules[made.__name__] = made  # for its dataclasses, and for imports
    exec(compile(text, made.__name__, "exec"), made.__dict__)
    return made


@pytest.fixture(autouse=True)
def _without_edited_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


# ---- the snapshot of producers, with the timestamp of each producer's first batch -------------------------

ROWS = ("_BATCH = Struct(", '_PRODUCER_2 = Struct(">qhiqqBq")\n_BATCH = Struct(')
FIELD = "    batches: tuple[BatchMetadata, ...] = ()\n"
HEAD = "SNAPSHOT_VERSIONS: Versions[_Reader] = Versions("
BATCHES = (BatchMetadata(9, 14, 4, 1700),)
SAYS = (7, 2, 5, 1700, 3, BATCHES)
"""A producer, as it is today."""


def reads_both(*, dropping: bool, writes: int) -> tuple[str, str]:
    """`_read_version_2` beside the present one."""
    text = inspect.getsource(producer_snapshot._read_version_1)
    text = text.replace("version_1", "version_2").replace("_PRODUCER.", "_PRODUCER_2.")
    text = text.replace("first, count =", "first, count, first_ms =")
    if not dropping:
        text = text.replace("first_offset, batches)", "first_offset, batches, first_ms)")
    return f"{HEAD}{{1: _read_version_1}}, writes=1)", (
        f"{text}\n\n{HEAD}{{1: _read_version_1, 2: _read_version_2}}, writes={writes})"
    )


def first_release(*edits: tuple[str, str], writes: int = 1) -> Any:
    return edited(producer_snapshot, "first", ROWS, reads_both(dropping=True, writes=writes), *edits)


def next_release() -> tuple[Any, Any]:
    """The state, and its snapshot."""
    state = edited(producer_state, "next_state", (FIELD, f"{FIELD}    first_timestamp_ms: int = -1\n"))
    edits = [
        ("from .producer_state", "from .next_state"),
        ("_PRODUCER.pack(", "_PRODUCER_2.pack("),
        ("len(entry.batches),\n", "len(entry.batches),\n                entry.first_timestamp_ms,\n"),
    ]
    return state, edited(producer_snapshot, "next", *edits, ROWS, reads_both(dropping=False, writes=2))


def written(snapshot: Any, state: Any, says: tuple[object, ...]) -> bytes:
    held = state.ProducerState()
    held.restore([state.ProducerEntry(*says)], [], 15)
    return cast(bytes, snapshot.encode_snapshot(held))


def read(snapshot: Any, state: Any, data: bytes) -> Any:
    snapshot.decode_snapshot(data, held := state.ProducerState())
    return held.get(7)


def test_a_field_of_the_snapshot_goes_through_two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    now, first, (state, later) = producer_snapshot, first_release(), next_release()
    kept = {1: written(now, producer_state, SAYS), 2: written(later, state, (*SAYS, 1650))}

    def format_of(snapshot: Any, state: Any, *says: tuple[object, ...]) -> Format:
        monkeypatch.setitem(DECLARED, "SNAPSHOT_VERSIONS", snapshot.SNAPSHOT_VERSIONS)
        said = {} if len(says) == 1 else {1: says[1]}
        return Format(
            "SNAPSHOT_VERSIONS", lambda data: read(snapshot, state, data).as_tuple(), says[0],
            written(snapshot, state, says[0]), said,
        )  # fmt: skip

    file = format_of(first, producer_state, SAYS)
    assert faults(file, kept, set()) == []
    assert faults(file, {1: kept[1]}, set()) == [
        "version 2 is read: keep a file of it, as it will be written"
    ]
    assert read(now, producer_state, written(first, producer_state, SAYS)).as_tuple() == SAYS, "the way back"
    too_early = format_of(first_release(writes=2), producer_state, SAYS)
    assert TOO_EARLY in faults(too_early, kept, set())
    holds_it = first_release(("from .producer_state", "from .next_state"))
    entry = state.ProducerEntry(*SAYS, 1650)
    lost = fields_lost(entry, read(holds_it, state, written(holds_it, state, (*SAYS, 1650))))
    assert lost == ["first_timestamp_ms is not in the snapshot"], "a restart would lose it"

    file = format_of(later, state, (*SAYS, 1650), (*SAYS, -1))
    assert faults(file, kept, {2}) == []
    assert faults(file, kept, set()) == [TOO_EARLY], "the first release is to be out"
    assert fields_lost(entry, read(later, state, kept[2])) == []
    assert read(first, producer_state, kept[2]).as_tuple() == SAYS, "the way back leads to the first one"
    with pytest.raises(now.SnapshotOfOtherVersion):
        now.decode_snapshot(kept[2], producer_state.ProducerState())


# ---- a file of rows ----------------------------------------------------------------------------------------


def test_a_field_of_a_file_of_rows_goes_through_two_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {1: encode_checkpoint([("t", 7)], 1), 2: encode_checkpoint([("t", 7, 4)], 2)}

    def format_of(
        shapes: RowShapes, parse: Callable[..., object], row: tuple[object, ...], **said: object
    ) -> Format:
        monkeypatch.setitem(DECLARED, "NOTES_SHAPES", shapes)
        return Format(
            "NOTES_SHAPES", lambda data: parse_checkpoint(data, shapes, parse), [row],
            encode_checkpoint([row], shapes.writes), {int(version[1:]): said[version] for version in said},
        )  # fmt: skip

    def dropping(topic: str, offset: str, _epoch: str = "-1") -> tuple[str, int]:
        return topic, int(offset)

    def keeping(topic: str, offset: str, epoch: str = "-1") -> tuple[str, int, int]:
        return topic, int(offset), int(epoch)

    first = format_of(RowShapes({1: 2, 2: 3}, writes=1), dropping, ("t", 7))
    assert faults(first, kept, set()) == []
    later = format_of(RowShapes({1: 2, 2: 3}, writes=2), keeping, ("t", 7, 4), v1=[("t", 7, -1)])
    assert faults(later, kept, {2}) == []
    assert faults(later, kept, set()) == [TOO_EARLY]
    assert parse_checkpoint(kept[2], RowShapes({1: 2, 2: 3}, writes=1), dropping) == [("t", 7)], (
        "the way back"
    )
