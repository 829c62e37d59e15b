"""The scopes and modes of `kafka-consumer-groups --reset-offsets`: how to parse them, and the new offset of
each partition.

Pure: the cluster's answers are the input (`Known`), offsets the output.  As in Kafka, a new offset is always
within the log: the log start replaces a lower one, the log end a higher one.  A partition goes to the log end
when it has no record at or after the given time, or no committed offset to stay at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum

from ...wire.errors import ErrorCode
from ..connecting.errors import RequestError

Key = tuple[str, int]
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE)


class Mode(Enum):
    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    DATETIME = "to-datetime"
    DURATION = "by-duration"
    SHIFT = "shift-by"
    FILE = "from-file"


@dataclass(frozen=True, slots=True)
class Reset:
    """One mode and its argument: `number` is an offset, a shift or a time in milliseconds; `offsets` come
    from a file."""

    mode: Mode
    number: int = 0
    offsets: Mapping[Key, int] = field(default_factory=dict)

    @property
    def needs_time(self) -> bool:
        return self.mode in (Mode.DATETIME, Mode.DURATION)


@dataclass(frozen=True, slots=True)
class Known:
    """The cluster's answers for the partitions; `at_time`: the first offset at or after the given time, -1
    for none."""

    begins: Mapping[Key, int]
    ends: Mapping[Key, int]
    committed: Mapping[Key, int]
    at_time: Mapping[Key, int] = field(default_factory=dict)


def moved_into_log(reset: Reset, key: Key, known: Known) -> str | None:
    """A sentence for a requested offset outside the log, which the log start or log end replaces."""
    taken = new_offset(reset, key, known)
    name, end = f"{key[0]}-{key[1]}", known.ends[key]
    match reset.mode:
        case Mode.OFFSET:
            wanted = reset.number
        case Mode.FILE:
            wanted = reset.offsets[key]
        case Mode.SHIFT:
            wanted = known.committed[key] + reset.number
        case Mode.DATETIME | Mode.DURATION if known.at_time.get(key, -1) < 0:
            return f"{name} has no record since that time: its end, {end}, is taken"
        case _:
            return None
    if wanted == taken:
        return None
    where = "its end" if wanted > end else "where it begins"
    return f"{name} has no offset {wanted}: {where}, {taken}, is taken"


def new_offset(reset: Reset, key: Key, known: Known) -> int:
    """Raises RequestError for a shift of a partition without a committed offset."""
    begin, end = known.begins[key], known.ends[key]
    match reset.mode:
        case Mode.EARLIEST:
            return begin
        case Mode.LATEST:
            return end
        case Mode.CURRENT:
            return known.committed.get(key, end)
        case Mode.OFFSET:
            wanted = reset.number
        case Mode.FILE:
            wanted = reset.offsets[key]
        case Mode.SHIFT:
            if key not in known.committed:
                message = f"{key[0]}-{key[1]} has no committed offset: there is nothing to shift"
                raise RequestError(ErrorCode.INVALID_REQUEST, message)
            wanted = known.committed[key] + reset.number
        case Mode.DATETIME | Mode.DURATION:
            found = known.at_time.get(key, -1)
            wanted = end if found < 0 else found
    return min(max(wanted, begin), end)


# ---- parsing -----------------------------------------------------------------------------------------------


def parse_topic(text: str) -> tuple[str, list[int]]:
    """`orders`, or `orders:0,2`; no numbers: all partitions.  Raises ValueError."""
    name, colon, rest = text.partition(":")
    numbers = rest.split(",") if colon else []
    if not name or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(f"--topic {text}: a topic is wanted, or a topic and partitions as in orders:0,2")
    return name, [int(number) for number in numbers]


def parse_datetime(text: str) -> int:
    """ISO 8601 with milliseconds, `2026-01-31T12:00:00.000`; without a zone it is UTC.  Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--to-datetime {text}: a time as 2026-01-31T12:00:00.000 or ...+01:00 is wanted"
        ) from None
    if "T" not in text.upper():
        raise ValueError(f"--to-datetime {text}: the time of day is missing, as in 2026-01-31T12:00:00.000")
    return _milliseconds(
        (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    )


def parse_duration(text: str) -> int:
    """ISO 8601 as Kafka takes it, `P7D`, `PT1H30M`, in milliseconds.  Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"--by-duration {text}: a duration as P7D, PT1H30M or PT15S is wanted")
    days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
    try:
        return _milliseconds(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    except OverflowError:
        raise ValueError(f"--by-duration {text}: that is too long") from None


def _milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def parse_file(text: str, groups: Sequence[str]) -> dict[str, dict[Key, int]]:
    """Rows `topic,partition,offset`, for a single group, or `group,topic,partition,offset`; as `--export`
    writes them.  Raises ValueError with the line's number."""
    found: dict[str, dict[Key, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip().strip('"') for cell in line.split(",")]
        if not line.strip():
            continue
        if len(cells) == 3 and len(groups) == 1:
            cells = [groups[0], *cells]
        if len(cells) != 4 or not all(cell.isascii() and cell.isdigit() for cell in cells[2:]):
            shape = "topic,partition,offset" if len(groups) == 1 else "group,topic,partition,offset"
            raise ValueError(f"line {number} of the file is {line!r}: {shape} is wanted")
        if cells[0] in groups:
            found.setdefault(cells[0], {})[cells[1], int(cells[2])] = int(cells[3])
    return found
