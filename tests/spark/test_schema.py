"""A user's schema of a read chooses columns, and changes none."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructField, StructType
from tidegate.spark.schema import SchemaError, projected_columns, spark_schema


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("vaule", BinaryType()), "no column 'vaule': its columns are .*value"),
        (StructField("offset", IntegerType()), "'offset' has type bigint, not int: read it as it is"),
        (StructField("offset", LongType(), nullable=False), "'offset' may be null: leave out NOT NULL"),
    ],
)
def test_a_schema_that_is_no_choice_of_columns_is_refused(field: StructField, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        projected_columns(StructType([StructField("value", BinaryType()), field]))


def test_columns_come_in_the_order_of_the_schema() -> None:
    columns: list[tuple[str, DataType]] = [("offset", LongType()), ("value", BinaryType())]
    assert projected_columns(StructType([StructField(*column) for column in columns])) == ("offset", "value")
    whole = spark_schema(include_headers=True)
    assert projected_columns(whole) == tuple(whole.names)
    assert projected_columns(StructType()) == ()
