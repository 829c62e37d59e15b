"""The columns of the source, and the Arrow schema that Spark demands of every batch.

A user's `.schema("value binary")` is a projection: any of the columns, in any order, with exactly these
types.  One without any column, `.schema(StructType())`, requests rows only: the leaders count them, and no
data is read.  Spark rejects a batch whose Arrow schema differs in any way, so the Arrow types here are
exactly Spark's own translation.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
ARROW_HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "headers": (HEADERS_TYPE, ARROW_HEADERS_TYPE),
}


class SchemaError(ValueError):
    """A schema that this source cannot fill; the message says what to write."""


def spark_schema(*, include_headers: bool) -> StructType:
    """The schema when the user gives none."""
    names = [name for name in COLUMNS if name != "headers" or include_headers]
    return StructType([StructField(name, COLUMNS[name][0]) for name in names])


def projected_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, in its order, or none; raises SchemaError when it is more than a
    projection."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise SchemaError(
                f"the source has no column {field.name!r}: its columns are {', '.join(COLUMNS)}"
            )
        wanted = COLUMNS[field.name][0]
        if field.dataType != wanted:
            raise SchemaError(
                f"column {field.name!r} has type {wanted.simpleString()}, not "
                f"{field.dataType.simpleString()}: "
                f"read it as it is, then cast it in Spark"
            )
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} may be null: leave out NOT NULL")
    return tuple(field.name for field in schema.fields)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of every RecordBatch of these columns."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in columns])
