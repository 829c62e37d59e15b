"""A stream with a windowed aggregate back into a topic, each window exactly once:

    python spark_windows.py KAFKA_BOOTSTRAP SOURCE TARGET CHECKPOINT PAGE

Records of SOURCE are JSON like {"account": "alice", "amount": 5}.  TARGET gets the sum of each account and
minute once the watermark has passed it.  The program reads what there is and ends; run it again, also after a
kill, and it goes on.  PAGE is a file for charts: lag, rows a second, commits.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F
from tidegate.spark import local_session
from tidegate.spark.progress.bars import watch
from tidegate.spark.progress.stream_page import stream_page


def main(bootstrap: str, source: str, target: str, checkpoint: str, charts: str) -> None:
    spark = local_session("windows")
    payments = (
        spark.readStream.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
        .select(
            "timestamp", F.from_json(F.col("value").cast("string"), "account string, amount long").alias("p")
        )
    )
    sums = (
        payments.withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "1 minute"), "p.account")
        .agg(F.sum("p.amount").alias("amount"))
    )
    query = (
        sums.select(
            F.col("account").alias("key"),
            F.to_json(F.struct(F.col("window.start").alias("minute"), "account", "amount")).alias("value"),
        )
        .writeStream.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("topic", target)
        .option("sinkId", f"sums-of-{source}")  # a micro-batch that is run again is written once
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    reports = watch(query, source)
    Path(charts).write_text(stream_page(f"{source} to {target}", reports))
    print(f"{sum(report['numInputRows'] for report in reports)} records read; charts are in {charts}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
