"""Random histories of one log that is truncated again and again, with power cuts during truncations.

Truncations are rare in the life of a log, take a dozen changes of the disk, and only their order keeps
truncated data from coming back: the histories of `log_history` interrupt one in twenty of them.
"""

from __future__ import annotations

from .log_history import WEIGHTS, StorageHistory


class TruncationHistory(StorageHistory):
    """See the module's text."""

    CUT = ("truncate", "truncate", "truncate", "roll", "checkpoint", "clean", "flush", "flush_run", "delete")
    WEIGHTS = WEIGHTS | {
        "roll": 10, "flush": 9, "truncate": 7, "cut": 16, "checkpoint": 6, "flush_begin": 5, "flush_run": 6,
        "flush_finish": 5,
        "watermark": 7, "clean": 6,
    }  # fmt: skip

    @classmethod
    def cut_after(cls, name: str, b: int) -> int:
        return (b >> 3) % (45 if name in ("clean", "truncate", "delete") else 14)
