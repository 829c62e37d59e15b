"""What a pinned cut keeps of one log: `Log.pins` has what the metadata that this node has applied names
(docs/semantics.md C14).

While a log has a pin, retention and DeleteRecords leave its log start at or below `start`, and the cleaner
leaves all of it: a reader at the cut finds each batch that it found before, with its producer and offsets,
and each aborted transaction in the index.
"""

from __future__ import annotations

from typing import NamedTuple


class Pin(NamedTuple):
    """[start, end) of one log, under the name of its cut.  Below `settled_end` everything was decided when
    the cut was taken.  A confirmed pin vouches for the log: nothing has gone since because of a record at or
    above that offset."""

    name: str
    start: int
    end: int
    settled_end: int
    is_confirmed: bool = False
