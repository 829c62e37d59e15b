"""The brokers' data folders in `tidegate status`: a word for each broker, and a line for each folder that
needs an operator.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..administration.operations import DataFolder

FULL_BELOW_BYTES: Final = 1 << 20
"""With less room a node takes no records any more (`node/upkeep/disk_reserve.py`)."""
NEARLY_FULL_SHARE: Final = 0.1

NO_ANSWER, OK, NEARLY_FULL, FULL, OFFLINE = "no answer", "ok", "nearly full", "full", "offline"
_FROM_GOOD_TO_BAD = (OK, NEARLY_FULL, FULL, OFFLINE)


def condition(folder: DataFolder) -> str:
    """The condition of one folder; OK also when the broker does not know the free bytes."""
    if folder.offline:
        return OFFLINE
    if folder.usable_bytes is None or not folder.total_bytes:
        return OK
    if folder.usable_bytes < FULL_BELOW_BYTES:
        return FULL
    return NEARLY_FULL if folder.usable_bytes < NEARLY_FULL_SHARE * folder.total_bytes else OK


def worst(folders: Sequence[DataFolder]) -> str:
    """The worst condition of a broker's folders; a broker without folders did not answer."""
    return max(map(condition, folders), key=_FROM_GOOD_TO_BAD.index, default=NO_ANSWER)


def in_words(folders: Iterable[DataFolder]) -> list[str]:
    """One sentence for each folder that is offline or nearly full."""
    lines: list[str] = []
    for folder in folders:
        match condition(folder):
            case "offline":
                what = (
                    f"the data folder {folder.path} is offline: its disk has failed, other replicas lead "
                    "its partitions"
                )
            case "full":
                what = f"the disk of {folder.path} is full: records can be read, not written; make room"
            case "nearly full":
                what = f"the disk of {folder.path} is nearly full: {_room(folder)}"
            case _:
                continue
        lines.append(f"node {folder.node_id}: {what}")
    return lines


def _room(folder: DataFolder) -> str:
    assert folder.usable_bytes is not None
    assert folder.total_bytes
    return (
        f"{100 * folder.usable_bytes // folder.total_bytes} % ({folder.usable_bytes >> 20} MiB) of it "
        "can be written"
    )
