"""The Spark batch source `tidegate`, and a Spark session for one machine.

    from tidegate.spark import local_session
    spark = local_session("backfill")
    source = spark.read.format("tidegate").option("bootstrap", "localhost:9192")
    flights = source.option("subscribe", "flights").load()

    from tidegate.spark import count_committed
    count_committed("localhost:9192", "flights")        # from indexes, without Spark and without reading data

    from tidegate.spark import cut
    now = cut("localhost:9192", ["flights", "gates"])   # a transaction is wholly inside or wholly outside
    spark.read.format("tidegate").option("bootstrap", "localhost:9192").option("cut", now.to_json()).load()

Importing this package does not import pyspark, so that `python -m tidegate.spark.java` works before anything
else does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client.consuming.cut import Cut, CutError
from .counting import count_committed
from .cuts import cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["Cut", "CutError", "count_committed", "cut", "decoder_name", "local_session", "register"]


def decoder_name() -> str:
    """What decodes records here: "kernel", which is compiled, or "numpy", where it was not built."""
    from .decoding.decode import decoder_name as name

    return name()


def register(spark: SparkSession) -> None:
    """Registers `format("tidegate")` with a session that has not registered it by itself."""
    from .source import register as register_source

    register_source(spark)


def local_session(app_name: str, cores: int = 2) -> SparkSession:
    """A Spark session on this machine with the source registered; see `session.local_session`."""
    from .session import local_session as make

    return make(app_name, cores)
