"""The source's columns as Arrow has them: Spark rejects a batch whose schema differs in any way, so these are
exactly Spark's own translation of `schema.py`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

ARROW_HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": ARROW_HEADERS_TYPE,
}


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of every RecordBatch of these columns."""
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])
