"""The Spark part of the main job: read both topics read_committed, aggregate, write Parquet, and collect the
figures for the checks.

Executors fetch offset ranges over gRPC from the partition leaders; nothing here talks to a broker but through
`spark.read.format("tidegate")`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...runtime.clock import Clock
from ...spark.session import local_session, stop_session
from .flights import DailyTotal

SCHEMA = (
    "id long, transaction string, attempt int, year int, month int, day int, dep_time int, dep_delay "
    "int, arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, distance int"
)

STEPS: Final = ("session", "flights to aggregates in Parquet", "flights to the checks", "late arrivals")
ROWS_A_POINT: Final = 5000  # of the line that shows what was read


@dataclass(frozen=True, slots=True)
class Backfill:
    """What Spark read: `flights` holds (id, transaction, attempt) of every visible record, `late` the ids and
    values.  `steps` are what it did from when to when, `read` when how many rows had arrived since before."""

    totals: set[DailyTotal]
    flights: list[tuple[int, str, int]]
    flight_values: dict[int, str]
    late: list[tuple[int, str]]
    rows_in_parquet: int
    steps: list[tuple[str, float, float]]
    read: list[tuple[float, int]]


def run_backfill(
    bootstrap_grpc: str, flights_topic: str, late_topic: str, result: Path, clock: Clock
) -> Backfill:
    """Runs the job and writes `aggregates.parquet` below `result`."""
    times = [clock.monotonic()]
    spark = local_session("tidegate-demo", cores=2)
    try:
        times.append(clock.monotonic())
        flights = _read(spark, bootstrap_grpc, flights_topic).cache()
        late = _read(spark, bootstrap_grpc, late_topic)
        target = str(result / "aggregates.parquet")
        _aggregate(flights).write.mode("overwrite").parquet(target)
        written = spark.read.parquet(target)
        totals = {DailyTotal(**row.asDict()) for row in written.collect()}
        visible = flights.select("id", "transaction", "attempt", "late_value").toLocalIterator(
            prefetchPartitions=True
        )
        times.append(clock.monotonic())
        read: list[tuple[float, int]] = []
        seen: list[tuple[int, str, int]] = []
        values: dict[int, str] = {}
        for row in visible:
            seen.append((row.id, row.transaction, row.attempt))
            if row.late_value is not None:
                values[row.id] = row.late_value
            if len(seen) % ROWS_A_POINT == 0:
                read.append((clock.monotonic(), ROWS_A_POINT))
        times.append(clock.monotonic())
        read.append((times[-1], len(seen) % ROWS_A_POINT))
        late_rows = [(row.id, row.raw) for row in late.select("id", "raw").collect()]
        times.append(clock.monotonic())
        steps = list(zip(STEPS, times[:-1], times[1:], strict=True))
        return Backfill(totals, seen, values, late_rows, len(totals), steps, read)
    finally:
        stop_session(spark)


def _read(spark: Any, bootstrap: str, topic: str) -> Any:
    from pyspark.sql import functions as F

    from .flights import LATE_MINUTES

    source = (
        spark.read.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("subscribe", topic)
        .option("isolation", "read_committed")
        .schema("value binary")
        .load()
    )
    text = source.select(F.col("value").cast("string").alias("raw"))
    parsed = text.select("raw", F.from_json("raw", SCHEMA).alias("f")).select("raw", "f.*")
    return parsed.withColumn("late_value", F.when(F.col("arr_delay") >= LATE_MINUTES, F.col("raw")))


def _aggregate(flights: Any) -> Any:
    from pyspark.sql import functions as F

    return flights.groupBy("carrier", "month", "day").agg(
        F.count("*").alias("flights"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay"),
        F.sum(F.col("arr_delay").isNull().cast("long")).alias("without_arrival"),
    )
