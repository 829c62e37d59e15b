"""Small text files that a reader finds whole or not at all: version, count, lines, checksum.  Pure encoding;
writing is `Disk.write_atomic`.

    1                         version
    2                         number of lines that follow
    flights 0 1500 1480 0     fields separated by blanks
    flights 1 900 900 0
    crc32c 1a2b3c4d           over all bytes before this line

Each writer decides the order of its fields.  Every small file of a node has this format, down to those of one
value; a reader gets rows, or a value, or `CheckpointInvalid`, and says what a damaged file means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from crc32c import crc32c

_VERSION = "1"
T = TypeVar("T")


class CheckpointInvalid(ValueError):
    """The file is damaged, of an unknown version, or its fields have no meaning."""


def encode_checkpoint(rows: Iterable[Sequence[object]]) -> bytes:
    lines = [" ".join(str(field) for field in row) for row in rows]
    body = "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines)).encode()
    return body + f"crc32c {crc32c(body):08x}\n".encode()


def decode_checkpoint(data: bytes, fields: int) -> list[list[str]]:
    """The rows, each of exactly `fields` fields.  Raises CheckpointInvalid."""
    body, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    body += b"\n"
    if last != f"crc32c {crc32c(body):08x}".encode():
        raise CheckpointInvalid("the checksum is wrong")
    try:
        version, count, *lines = body.decode().splitlines()
        announced = int(count)
    except ValueError as error:
        raise CheckpointInvalid(str(error)) from error
    rows = [line.split(" ") for line in lines]
    if version != _VERSION or announced != len(rows) or any(len(row) != fields for row in rows):
        raise CheckpointInvalid(f"version {version}, {count} rows announced, {len(rows)} found")
    return rows


def parse_checkpoint(data: bytes, fields: int, parse: Callable[..., T]) -> list[T]:
    """`parse` of the fields of each row.  Raises CheckpointInvalid, also when `parse` raises ValueError or
    KeyError."""
    try:
        return [parse(*row) for row in decode_checkpoint(data, fields)]
    except (ValueError, KeyError) as error:
        raise CheckpointInvalid(str(error)) from error


def encode_value(value: object) -> bytes:
    """A file of one value, without blanks."""
    return encode_checkpoint([[value]])


def parse_value(data: bytes, parse: Callable[[str], T]) -> T:
    """The value of `encode_value`.  Raises CheckpointInvalid."""
    values = parse_checkpoint(data, 1, parse)
    if len(values) != 1:
        raise CheckpointInvalid(f"{len(values)} values where one belongs")
    return values[0]
