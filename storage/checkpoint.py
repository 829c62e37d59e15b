"""Small text files that a reader finds whole or not at all: version, count, lines, checksum.  Pure encoding;
writing is `Disk.write_atomic`.

    1                         version
    2                         number of lines that follow
    flights 0 1500 1480 0     fields separated by blanks
    flights 1 900 900 0
    crc32c 1a2b3c4d           over all bytes before this line

Each writer decides the order of its fields.  The small text files of a node have this format, down to those
of one value; a reader gets rows, or a value, or `CheckpointInvalid`, and says what a damaged file means.
(Flush notes, producer snapshots and `meta.properties` have formats of their own.)

The version is that of the one file, not of all.  Beside its name, every file has the versions that this
release reads and the one that it writes (`Versions`, here `RowShapes`); a file of another version is refused
like a damaged one, and the message names the version.  So a further column is a further version, in two
releases:

1. The first reads both versions and still writes the former one: an older node may come back to the folder.
2. The next one writes the new version.  The way back leads to the first one and no further.

`tests/storage/formats` keeps a file of every version that was ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from crc32c import crc32c

T = TypeVar("T")


class Versions(NamedTuple, Generic[T]):
    """Of one file: the versions that this release reads, with what each needs to be read, and the one that it
    writes.

    A release may write only what the release before it reads (`tests/storage/test_formats.py`).
    """

    reads: Mapping[int, T]
    writes: int

    def other(self, version: int) -> str:
        """What to say of a file of a version that is not read."""
        known = " and ".join(map(str, sorted(self.reads)))
        return f"has version {version}; this release reads version {known} of it"


RowShapes = Versions[int]
"""With the number of fields that each row has.  The parser of a row gives the fields that only later versions
have their defaults."""

VALUE_SHAPES = RowShapes({1: 1}, writes=1)
"""Of every file of one value."""


class CheckpointInvalid(ValueError):
    """The file is damaged, of an unknown version, or its fields have no meaning."""


def encode_checkpoint(rows: Iterable[Sequence[object]], version: int) -> bytes:
    """`version`: what `Versions` of the file says that is written."""
    lines = [" ".join(str(field) for field in row) for row in rows]
    body = "".join(f"{line}\n" for line in (str(version), str(len(lines)), *lines)).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_checkpoint(data: bytes, shapes: RowShapes) -> list[list[str]]:
    """The rows, all of the shape that the file's version has.  Raises CheckpointInvalid."""
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    if last != f"crc32c {crc32c(body):08x}".encode():
        raise CheckpointInvalid("the checksum is wrong")
    try:
        first, count, *lines = body.decode().splitlines()
        version, announced = int(first), int(count)
    except ValueError as error:
        raise CheckpointInvalid(str(error)) from error
    if version not in shapes.reads:
        raise CheckpointInvalid(f"the file {shapes.other(version)}")
    rows = [line.split(" ") for line in lines]
    if announced != len(rows):
        raise CheckpointInvalid(f"{announced} rows announced, {len(rows)} found")
    wrong = next((row for row in rows if len(row) != shapes.reads[version]), None)
    if wrong is not None:
        expected = f"a row of version {version} has {shapes.reads[version]}"
        raise CheckpointInvalid(f"a row has {len(wrong)} fields; {expected}")
    return rows


def parse_checkpoint(data: bytes, shapes: RowShapes, parse: Callable[..., T]) -> list[T]:
    """`parse` of the fields of each row.  Raises CheckpointInvalid, also when `parse` raises ValueError or
    KeyError."""
    try:
        return [parse(*row) for row in decode_checkpoint(data, shapes)]
    except (ValueError, KeyError) as error:
        raise CheckpointInvalid(str(error)) from error


def encode_value(value: object) -> bytes:
    """A file of one value, without blanks."""
    return encode_checkpoint([[value]], VALUE_SHAPES.writes)


def parse_value(data: bytes, parse: Callable[[str], T]) -> T:
    """The value of `encode_value`.  Raises CheckpointInvalid."""
    values = parse_checkpoint(data, VALUE_SHAPES, parse)
    if len(values) != 1:
        raise CheckpointInvalid(f"{len(values)} values where one belongs")
    return values[0]
