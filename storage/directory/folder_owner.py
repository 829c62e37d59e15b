"""The cluster and node that own a data folder: `meta.properties`.

    version=1
    cluster.id=prod
    node.id=3
    directory.id=6f1c...            names the folder for good; a wiped or replaced disk gets another
    metadata.id=90aa...             names the metadata log that knows what is in it; from the first
                                    registration on
    crc32c=1a2b3c4d                 over all bytes before this line

The node refuses a damaged file and names it: half an identity may be another node's.  Files of older versions
have no checksum; the node reads them and rewrites them with one.  Any other line makes the file damaged, so
that no single bit can turn a file with a checksum into one without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from crc32c import crc32c

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import CheckpointInvalid

META_PROPERTIES = "meta.properties"
OWNER_VERSION = "1"
KEYS = ("version", "cluster.id", "node.id", "directory.id", "metadata.id")
_CHECKSUM = b"crc32c="
log = logs.get(__name__)


class DirectoryRefused(Exception):
    """The folder may not be used: it is another node's, another cluster's or another metadata's, or another
    process holds it."""


def encode_owner(fields: Mapping[str, str]) -> bytes:
    body = "".join(f"{key}={value}\n" for key, value in fields.items()).encode()
    return body + _CHECKSUM + f"{crc32c(body):08x}\n".encode()


def decode_owner(data: bytes) -> dict[str, str]:
    """The fields of the file without the checksum.  Raises CheckpointInvalid."""
    body, mark, checksum = data.rpartition(_CHECKSUM)
    if not mark:
        body = data
    elif checksum != f"{crc32c(body):08x}\n".encode():
        raise CheckpointInvalid("the checksum is wrong")
    found: dict[str, str] = {}
    for line in body.decode(errors="replace").removesuffix("\n").split("\n"):
        key, equals, value = line.partition("=")
        if not equals or key not in KEYS or key in found:
            raise CheckpointInvalid(f"the line {line!r} has no meaning here")
        found[key] = value
    lacking = [key for key in KEYS[:3] if not found.get(key)]
    if lacking:
        raise CheckpointInvalid(f"it does not say {', '.join(lacking)}")
    return found


def claim_folder(
    disk: Disk, folder: Path, own: Mapping[str, str], fresh_directory_id: str, *, holds_logs: bool
) -> str:
    """Checks that `own` (cluster.id, node.id) owns the folder, marks a new folder as its own, and returns the
    folder's id.

    Raises DirectoryRefused, OSError.
    """
    path = folder / META_PROPERTIES
    own = {"version": OWNER_VERSION, **own}
    if not disk.exists(path):
        if holds_logs:
            raise DirectoryRefused(
                f"the data folder {folder} holds partitions but no {META_PROPERTIES}: whose is it?"
            )
        disk.write_atomic(path, encode_owner({**own, "directory.id": fresh_directory_id}))
        return fresh_directory_id
    data = disk.read(path)
    try:
        found = decode_owner(data)
    except CheckpointInvalid as error:
        raise DirectoryRefused(
            f"{path} is damaged ({error}): whose the folder is cannot be known. If it is this node's "
            "for certain, correct the "
            "file's lines and remove the last one, crc32c=, which is then written anew; or use an "
            "empty folder: what other "
            "replicas have is fetched again."
        ) from error
    for key, value in own.items():
        if found[key] != value:
            raise DirectoryRefused(
                f"the data folder {folder} belongs to {key}={found[key]!r}; this node has {key}={value!r}. "
                "Use the folder that belongs to this node, or an empty one."
            )
    _add_checksum(disk, path, data, found)
    return found.get("directory.id", "")


def bind_folders(disk: Disk, folders: Sequence[Path], metadata_id: str) -> None:
    """Marks claimed folders as known to the metadata log with this id; marks none of them when one belongs to
    another metadata log.

    A quorum whose disks were all lost is formed again under the same cluster.id, and knows no topic: a broker
    that followed it would remove every log it has as a deleted topic's, perhaps the last copies.  Raises
    DirectoryRefused when a folder was filled under another metadata log; OSError, except for a full disk:
    then a later start binds the folder.
    """
    owners = [
        (folder / META_PROPERTIES, decode_owner(disk.read(folder / META_PROPERTIES))) for folder in folders
    ]
    for path, found in owners:
        bound = found.get("metadata.id", metadata_id)
        if bound != metadata_id:
            raise DirectoryRefused(
                f"the cluster's metadata was begun anew (as {metadata_id}): it does not know what "
                f"the data folder {path.parent}"
                f" holds (of {bound}), and would have it removed. See 'The metadata was begun anew' "
                "in operations.md."
            )
    for path, found in owners:
        if "metadata.id" not in found:
            _write_if_there_is_room(disk, path, encode_owner({**found, "metadata.id": metadata_id}))


def _add_checksum(disk: Disk, path: Path, data: bytes, found: Mapping[str, str]) -> None:
    """Adds a checksum to a file of an older version; on a full disk, a later start does it."""
    content = encode_owner(found)
    if content != data:
        _write_if_there_is_room(disk, path, content)


def _write_if_there_is_room(disk: Disk, path: Path, content: bytes) -> None:
    try:
        disk.write_atomic(path, content)
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        log.warning("folder_owner_not_written", path=path, reason=error)
