"""A Spark session on this machine, configured for fast small reads and little terminal output.

Three settings matter for correctness: the workers run this very interpreter, everything binds to loopback,
and Java is the one that `java.py` found.  The others matter for speed: unix domain sockets to the Python
workers here, and the `gc.freeze()` of worker_memory.py, take a task from 57 to about 10 ms together; the
options of Arrow spare Java checks of each value that it takes out of a batch; it reads from a worker in
pieces of 256 KiB, not 64, into memory that begins with a page; and the first read takes some seconds less by
the Python of worker_python.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from .java import java_home
from .source import register
from .worker_python import COMMAND

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 30.0
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# `rep movsb`, by which Linux copies, is five times slower on AMD's Zen where the target begins up to 31 bytes
# behind the source within their pages: as Java's memory for reads does, after the 16 bytes of malloc
READ_OPTION = "-Dsun.nio.PageAlignDirectMemory=true"
ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"


def local_session(app_name: str, cores: int = 2) -> SparkSession:
    """Starts (or returns) the session of this process, `local[cores]`, with the source `tidegate` registered.

    Raises java.JavaMissing when Spark cannot start for want of a Java.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = workers_python()
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["JAVA_HOME"] = str(java_home())
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in settings(cores).items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def workers_python() -> str:
    """What runs the workers: this interpreter, by `tidegate-spark-python` where that is installed."""
    return shutil.which(COMMAND, path=sysconfig.get_path("scripts")) or sys.executable


def stop_session(spark: SparkSession) -> None:
    """Stops the session and its Java process, and waits for its end; after `stop` alone, Java would end some
    time later."""
    spark.stop()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    process = getattr(gateway, "proc", None)
    if gateway is not None:
        gateway.shutdown()
    if process is not None:
        process.stdin.close()  # the launcher ends Java when this pipe does
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings(cores: int) -> dict[str, str]:
    """Spark's settings for one machine."""
    return {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {ARROW_OPTIONS} {READ_OPTION}"
        ),
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": str(256 << 10),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
