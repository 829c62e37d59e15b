"""Short histories that broke a promise once, each by a defect of its own: what random histories have found
must stay found.

They were made short by `chaos/sim/shrink.py`; the numbers of a step choose sizes and fates
(`chaos/sim/storage/log_history.py`).
"""

from __future__ import annotations

import pytest
from tidegate.chaos.sim.runs import Step
from tidegate.chaos.sim.storage.folders_history import FoldersHistory
from tidegate.chaos.sim.storage.log_history import CUTTABLE, Shape, StorageHistory

COMPACTED = Shape("compact", segment_bytes=500)
SNAPSHOTS = Shape(resume_bytes=300, segment_bytes=1000)
TO_COMPACT, TO_DELETE = ("reconfigure", 0, 0), ("reconfigure", 1, 0)


def during(fault: str, operation: str, number: int) -> Step:
    return fault, CUTTABLE.index(operation), number


PINNED: dict[str, tuple[Shape, list[Step]]] = {
    "a log that is compacted no more keeps its gaps through a full scan": (
        Shape(), [TO_COMPACT, ("follow", 0, 1), ("flush", 0, 0), TO_DELETE],
    ),
    "no gap comes into a log whose folder could not take down that it may have some": (
        Shape(), [during("full", "reconfigure", 0), ("follow", 0, 1), ("flush", 0, 0)],
    ),
    "a cleaning after one that found no room for its decision": (
        COMPACTED,
        [("append", 0, 0), ("roll", 0, 0), ("cut", 3, 0), ("watermark", 1, 0), during("full", "clean", 12),
            ("clean", 0, 0)],
    ),
    "a power cut while recovery builds a transaction index again": (
        SNAPSHOTS,
        [("transaction", 0, 2), ("roll", 0, 0), ("follow", 841828, 0), ("kill", 0, 0), ("abort", 0, 2),
            ("cut", 3, 243438),
         ("flush", 0, 0), ("checkpoint", 0, 0), ("follow", 1, 2), ("idempotent", 0, 0), ("follow", 923708, 1),
         ("cut_open", 501662, 5)],
    ),
    "a checkpoint whose rename came through and whose sync failed": (
        Shape(),
        [("append", 1, 0), ("flush", 0, 0), during("any_sync_fails", "checkpoint", 1), ("truncate", 0, 0)],
    ),
    "producers of a cleaned segment that retention has removed, and no checkpoint": (
        COMPACTED,
        [("abort", 0, 0), ("abort", 0, 0), ("follow", 366314, 86580), ("abort", 0, 1),
            ("idempotent", 623767, 0),
         ("abort", 0, 1), ("idempotent", 0, 0), ("transaction", 1, 1), ("kill", 0, 0),
         ("watermark", 753751, 0), ("clean", 0, 0),
         ("delete", 2, 0)],
    ),
    "a snapshot of them is not replaced by a scan that knows less": (
        Shape(segment_bytes=500),
        [("idempotent", 0, 0), ("follow", 379621, 1), ("watermark", 444611, 0), ("delete", 1, 0), TO_COMPACT,
         ("checkpoint", 0, 0), ("transaction", 0, 0), ("full_open", 3, 0), ("clean", 0, 0),
         ("full_open", 3, 0)],
    ),
    "no snapshot at the end of a log that was cut into a gap": (
        SNAPSHOTS._replace(policies="compact"),
        [("transaction", 0, 0), ("close", 0, 0), ("transaction", 6889, 0), ("abort", 0, 0), ("follow", 0, 1),
         ("idempotent", 0, 0), ("truncate", 626565, 912265), ("flush", 0, 0), ("transaction", 0, 0),
         ("cut", 0, 0)],
    ),
    "nor after a clean close of such a log": (
        Shape("compact"),
        [("abort", 0, 0), ("idempotent", 1, 0), ("follow", 0, 2), ("truncate", 5, 1), ("close", 0, 0),
            ("kill", 0, 0)],
    ),
    "a snapshot that retention writes at once vouches for indexes that are there": (
        Shape(index_interval_bytes=1),
        [("idempotent", 0, 0), ("close", 0, 0), ("transaction", 0, 0), ("roll", 0, 0), ("watermark", 2, 0),
            ("cut", 1018072, 8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PINNED)
def test_what_was_repaired_stays_repaired(what: str) -> None:
    shape, steps = PINNED[what]
    StorageHistory(shape=shape, steps=steps).run()


def test_a_deletion_that_an_opening_has_finished_is_finished_for_good() -> None:
    """The rename was not synced; the next opening removed the folder, which a power cut then brought back."""
    FoldersHistory(161, steps=[("create", 0, 0), ("disk_fails", 5, 0), ("cut", 0, 0)]).run()


def test_a_cut_whose_last_sync_failed_lost_nothing() -> None:
    """Some of the segments were gone after the crash; the checksums of the one in front say where the
    next one had begun."""
    steps = [
        ("transaction", 2, 0),
        ("follow", 379728, 1),
        ("append", 428072, 0),
        ("commit", 0, 0),
        ("transaction", 1, 0),
    ]
    StorageHistory(8001854, steps=[*steps, ("kill", 0, 0), ("any_sync_fails", 356665, 1033709)]).run()
