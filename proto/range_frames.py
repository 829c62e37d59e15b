"""ReadRange in plain frames: what goes over a range connection, beside gRPC.

gRPC copies each message several times on either side; of large records that is most of what a read costs.
So a reader may ask for a connection of its own (`OpenRangeConnection`), on which both ends send frames, each
a four-byte big-endian length and its bytes:

| who | frame |
|---|---|
| reader | first: the ticket that the node gave it by gRPC |
| node | `GREETING`: the connection is the reader's |
| reader | a ReadRangeRequest; one at a time |
| node | `CHUNK` and a RangeChunk; as many as the range has |
| node | `STORED` and a RangeChunk, whose records go straight from the file; then `CONFIRMED` |
| node | `END`: the range was sent; or `FAILED` and an ErrorDetail |

A node looks again whether it still leads after it has read a chunk.  It reads stored records while it sends
them, so that a reader takes them for nothing before `CONFIRMED` has come.

After `END` and `FAILED` the reader may ask for the next range.  A reader that wants no more of one closes the
connection.
"""

from __future__ import annotations

from typing import Final

from . import data_pb2

OPEN_RANGE_CONNECTION: Final = (
    f"/{data_pb2.DESCRIPTOR.services_by_name['Data'].full_name}/OpenRangeConnection"
)
GREETING: Final = b"tidegate ranges 1"
CHUNK: Final = b"\x00"
END: Final = b"\x01"
FAILED: Final = b"\x02"
STORED: Final = b"\x03"
CONFIRMED: Final = b"\x04"
REQUEST_BYTES_MAX: Final = 64 << 10
"""Of a reader's frame; a topic's name is the longest part of a request."""
