"""The columns of the source.

A user's `.schema("value binary")` is a projection: any of the columns, in any order, with exactly these
types.  One without any column, `.schema(StructType())`, requests rows only: the leaders count them, and no
data is read.
"""

from __future__ import annotations

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

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}


class SchemaError(ValueError):
    """A schema that this source cannot fill; the message says what to write."""


def spark_schema(*, include_headers: bool) -> StructType:
    """The schema when the user gives none."""
    names = [name for name in COLUMNS if name != "headers" or include_headers]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def projected_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, in its order, or none; raises SchemaError when it is more than a
    projection."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise SchemaError(
                f"the source has no column {field.name!r}: its columns are {', '.join(COLUMNS)}"
            )
        wanted = COLUMNS[field.name]
        if field.dataType != wanted:
            raise SchemaError(
                f"column {field.name!r} has type {wanted.simpleString()}, not "
                f"{field.dataType.simpleString()}: "
                f"read it as it is, then cast it in Spark"
            )
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} may be null: leave out NOT NULL")
    return tuple(field.name for field in schema.fields)
