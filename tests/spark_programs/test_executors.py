"""Spark with executors in processes of their own, whose Python comes in an archive (docs/spark.md,
Executors)."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Producer
from tidegate.spark.java import java_home
from tidegate.tests.packaging.wheels import build_wheel, environment
from tidegate.tests.started import started

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]

SPARK = Path(pyspark.__file__).parent
MASTER = "local-cluster[2,1,1024]"  # a master, and two workers with a core and 1024 MB each
COPY = """
import sys
from pyspark.sql import SparkSession

bootstrap = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("tidegate").option("bootstrap", bootstrap).option("subscribe", "flights").load()
sink = rows.select("value").write.format("tidegate").option("bootstrap", bootstrap).option("topic", "copies")
sink.mode("append").save()
copies = spark.read.format("tidegate").option("bootstrap", bootstrap).option("subscribe", "copies").load()

def places(batches):
    import pyarrow, tidegate
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"place": [tidegate.__file__]})

found = {row.place for row in copies.mapInArrow(places, "place string").collect()}
print(copies.count(), "copies by", *found)
"""


@dataclass(frozen=True)
class Site:
    """The driver's folder: the package in `environment`, and archives for the executors.  A home of its own
    for Spark: executors work below it."""

    folder: Path
    home: Path

    def submit(self, archive: str, bootstrap: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "job.py").write_text(COPY)
        command = [str(self.home / "bin" / "spark-submit"), "--master", MASTER]
        command += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.task.maxFailures=1"]
        command += ["--archives", f"{archive}#environment", "job.py", bootstrap]
        given = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))
        }
        given |= {
            "PYSPARK_PYTHON": "./environment/bin/python",
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(java_home()),
        }
        return subprocess.run(
            command, cwd=self.folder, env=given, capture_output=True, text=True, timeout=600, check=False
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("driver")
    environment(folder / "environment", build_wheel(tmp_path_factory.mktemp("wheel")))
    environment(folder / "bare")
    for name in ("environment", "bare"):
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(folder / name, ".")
    home = tmp_path_factory.mktemp("spark")
    for path in SPARK.iterdir():
        if path.name != "work":  # which other clusters of this Spark have left there
            (home / path.name).symlink_to(path)
    return Site(folder, home)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, {"transaction.state.log.num.partitions": 2})
    with started(cluster):
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("flights", 4, 1), NewTopic("copies", 2, 1)])
        with Producer(cluster.bootstrap) as producer:
            for number in range(1000):
                producer.send("flights", b"%d" % number, partition=number % 4)
        yield cluster.bootstrap


def test_executors_read_and_write_with_the_package_of_an_archive(site: Site, bootstrap: str) -> None:
    done = site.submit("environment.tar.gz", bootstrap)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    count, *_, place = done.stdout.split()
    assert count == "1000"
    assert "/environment/lib/" in place
    assert place.startswith(str(site.home / "work"))  # where the executor has unpacked it


def test_executors_without_the_package_end_the_job_with_an_error_that_names_it(
    site: Site, bootstrap: str
) -> None:
    done = site.submit("bare.tar.gz", bootstrap)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "has no package 'tidegate': give the executors the environment of the driver" in said, said[-4000:]
    assert "ModuleNotFoundError" not in said
