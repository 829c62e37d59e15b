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
| node | `IN_FILE` and a FileChunk, to a reader on its own machine |
| reader | then `READ`, when it has read the records from the file; or `NOT_READ`: they are to be sent |
| node | after `READ`: `CONFIRMED` |
| node | `END`: the range was sent; or `FAILED` and an ErrorDetail |

A node looks again whether it still leads after it has read a chunk.  It reads stored records while it sends
them, and a reader on its machine reads them itself, so that they are nothing before `CONFIRMED` has come.

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
IN_FILE: Final = b"\x05"
READ: Final = b"\x06"
NOT_READ: Final = b"\x07"
REQUEST_BYTES_MAX: Final = 64 << 10
"""Of a reader's frame; a topic's name is the longest part of a request."""
