"""Small text files that a reader finds whole or not at all: version, count, lines, checksum.  Pure encoding;
writing is `Disk.write_atomic`.

    1                         version
    2                         number of lines that follow
    flights 0 1500 1480 0     fields separated by blanks
    flights 1 900 900 0
    crc32c 1a2b3c4d           over all bytes before this line

Each writer decides the order of its fields.  Readers treat a file that does not decode like a missing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from crc32c import crc32c

_VERSION = "1"


class CheckpointInvalid(Exception):
    """The file is damaged or of an unknown version."""


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
    version, count, *lines = body.decode().splitlines()
    rows = [line.split(" ") for line in lines]
    if version != _VERSION or int(count) != len(rows) or any(len(row) != fields for row in rows):
        raise CheckpointInvalid(f"version {version}, {count} rows announced, {len(rows)} found")
    return rows
