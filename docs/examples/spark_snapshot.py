"""A consistent snapshot of several topics in Parquet: it has every transaction as a whole or not at all.

    python spark_snapshot.py BOOTSTRAP FOLDER TOPIC TOPIC ...

FOLDER gets one table with the column `topic`, and the cut: `.option("cut", text)` reads the same again.
"""

import sys
from pathlib import Path

from tidegate.spark import cut, local_session
from tidegate.spark.progress.bars import tasks_bar


def main(bootstrap: str, folder: str, *topics: str) -> None:
    taken = cut(bootstrap, list(topics))
    spark = local_session("snapshot")
    records = (
        spark.read.format("tidegate")
        .option("bootstrap", bootstrap)
        .option("cut", taken.to_json())
        .schema("key binary, value binary, topic string, partition int, offset long")
        .load()
    )
    with tasks_bar(spark, "snapshot"):
        records.write.partitionBy("topic").parquet(f"{folder}/records")
    Path(folder, "cut.json").write_text(taken.to_json())
    rows = spark.read.parquet(f"{folder}/records").groupBy("topic").count().orderBy("topic").collect()
    for row in rows:
        print(f"{row.topic}: {row['count']} records")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
