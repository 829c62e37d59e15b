"""Spark's way to the data: the batch source `tidegate`, and what it takes to run Spark on one machine.

    from tidegate.spark import local_session
    spark = local_session("backfill")
    flights = spark.read.format("tidegate").option("bootstrap", "localhost:9192").option("subscribe", "flights").load()

    from tidegate.spark import count_committed
    count_committed("localhost:9192", "flights")        # from indexes, without Spark and without reading data

Importing this package does not import pyspark, so that `python -m tidegate.spark.java` works before anything else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .counting import count_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["count_committed", "local_session", "register"]


def register(spark: SparkSession) -> None:
    """Makes `format("tidegate")` known to a session, where it is not registered by itself already."""
    from .source import register as register_source

    register_source(spark)


def local_session(app_name: str, cores: int = 2) -> SparkSession:
    """A Spark session on this machine with the source registered; see `session.local_session`."""
    from .session import local_session as make

    return make(app_name, cores)
