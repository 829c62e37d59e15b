"""What becomes of each field of a log, and of the parts that keep its files, when the log is truncated,
begins anew, is closed cleanly, and exchanges its files with its future replica.

A new field fails here until it stands in `BECOMES`, and until the four do to it what the table says.  (What
becomes of durable files: the table of `storage/log/local_log.py`.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.epoch_cache import EpochCache
from tidegate.storage.log.log import Log

from .test_running_log import names_of
from .workload import FOLDER, append, batch, open_log

BECOMES: Final[dict[str, dict[str, str]]] = {
    "Log": {
        "stays stays stays stays": "config partition pins recovered recovery_truncated_bytes topic"
        " was_copied_in_part",
        "stays stays stays other": "local",
        "stays falls stays stays": "_log_start",
        "rises rises stays rises": "truncations",
        "other other stays stays": "_epochs producers",
        "falls falls stays stays": "_copied_cleaned_at_most _high_watermark _log_end cleaned_at_most",
        "falls falls stays falls": "cleaned_to",
    },
    "LocalLog": {
        "stays stays stays": "directory disk durability health hooks removals replacements segments"
        " start_note",
    },
    "Durability": {
        "stays stays stays": "_directory _disk resume_bytes",
        "other other stays": "_offset_gap _resume waits",
        "other other other": "_ticket",
        "falls falls stays": "_resume_size",
        "falls falls rises": "_flushed_end flushed_size",
    },
    "LogStart": {
        "stays stays stays": "_disk _lock _path hooks",
        "stays stays other": "_closed",
        "stays falls stays": "_wanted _written noted",
    },
    "Health": {
        "stays stays stays": "_directory hooks name offline",
        "stays stays other": "closed unusable",
    },
    "Segments": {
        "stays stays stays": "_directory _disk _files _list switches",
        "stays other stays": "active",
        "falls falls stays": "size_bytes",
    },
}
"""Class -> what becomes of a field (truncated, begun anew, closed; of the log itself also exchanged) -> the
fields.  "other": another object, or another value that is no number.  An exchange takes the parts of the
future replica as they are."""
END, AGAIN = 12, 4
"""Where the log ends after the truncation; where it begins anew."""


def made(disk: LyingDisk, folder: Path) -> Log:
    """A log of 36 records in two leader epochs and several segments, which begins at 6 and is flushed up to
    30; the next flush has begun."""
    disk.make_directory(folder.parent)
    log = open_log(disk, folder=folder)
    log.local.durability.resume_bytes = 1
    for at in range(12):
        append(log, batch(3, pid=7, epoch=0, sequence=3 * at), leader_epoch=1 + at // 8)
        if at == 9:
            log.flush_now()
    log.set_high_watermark(33)
    log.advance_log_start(6)
    log.local.start_note.want(6)
    log.local.start_note.write()
    log.local.start_note.want(9)
    log.cleaned_to = 24
    log.note_copied(24)
    log.local.durability._offset_gap = 98, 99
    log.begin_flush()
    return log


def truncated(log: Log) -> None:
    log.truncate_to(END)


def begun_anew(log: Log) -> None:
    log.truncate_to(AGAIN)


def closed(log: Log) -> None:
    log.close(clean=True)


def exchanged(log: Log) -> None:
    (future := made(LyingDisk(), Path("/other/flights-0"))).local.durability.cancel()
    log.local.durability.cancel()
    log.exchange_files(future)


def values(log: Log, *, with_parts: bool) -> dict[tuple[str, str], Any]:
    local = log.local
    parts = (local, local.durability, local.start_note, local.health, local.segments) if with_parts else ()
    return {
        (type(part).__name__, name): value.entries() if isinstance(value, EpochCache) else value
        for part in (log, *parts)
        for name in names_of(part)
        for value in [getattr(part, name)]
    }


def word(before: Any, after: Any) -> str:
    if before is after or (before == after and isinstance(before, (int, str, tuple, list, Path))):
        return "stays"
    if type(before) is type(after) is int:
        return "falls" if after < before else "rises"
    return "other"


def observed(*events: Callable[[Log], None]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for event in events:
        before = values(log := made(LyingDisk(), FOLDER), with_parts=event is not exchanged)
        event(log)
        after = values(log, with_parts=event is not exchanged)
        for name, value in before.items():
            found[name].append(word(value, after[name]))
    return {name: " ".join(words) for name, words in found.items()}


def test_what_becomes_of_each_field_of_a_log_stands_in_the_table() -> None:
    listed = {
        (of, name): words
        for of, rows in BECOMES.items()
        for words, names in rows.items()
        for name in names.split()
    }
    found = observed(truncated, begun_anew, closed, exchanged)
    assert found.keys() - listed.keys() == set(), "BECOMES is to say what becomes of these fields"
    assert listed == found
