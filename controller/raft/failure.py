"""The one exception that ends a quorum member."""

from __future__ import annotations


class RaftFatal(BaseException):
    """The node must stop: its disk failed, its files are damaged or foreign, or a Raft invariant broke.

    Not an `Exception`, so that no `except Exception` on the way (PySyncObj has several) can swallow it.
    """
