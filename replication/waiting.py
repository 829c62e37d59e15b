"""The requests that wait for a replica end together, of whichever kind they are.

| kind | what it waits for | how `end` answers it |
|---|---|---|
| `DelayedProduce` | the high watermark: acks=all, records of coordinators | with the code |
| `ClientFetches` | enough committed records | with what it finds now: records, an error, or nothing |
| `FollowerFetches` | records, a higher high watermark | with what it finds now |
| `RecordDeletions` | the log starts of the followers | with the code |

`ReplicaManager` ends them when the replica's role changes, when the lease on leadership is over, when the
replica is deleted or its disk fails, and when the manager stops.  A new kind stands here and in
`ReplicaManager._waiting`; `tests/replication/test_ended_waits.py` tries each kind with each ending.

`end` reaches the requests that wait now.  One that awaits something else meanwhile (a flush, a thread) asks
anew afterwards whether the replica has the same leader, and whether the lease is good.
"""

from __future__ import annotations

from typing import Protocol

from ..wire.errors import ErrorCode
from .replica.replica import Replica


class WaitingRequests(Protocol):
    """One kind; see the module's text."""

    def end(self, replica: Replica, code: ErrorCode) -> None:
        """Answers all that wait for this replica."""
