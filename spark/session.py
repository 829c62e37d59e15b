"""A Spark session on this machine, configured for fast small reads and little terminal output.

Three settings matter for correctness: the workers run this very interpreter, everything binds to loopback,
and Java is the one that `java.py` found.  The others matter for speed: unix domain sockets to the Python
workers here, and the `gc.freeze()` of worker_memory.py, take a task from 57 to about 10 ms together; the
options of Arrow spare Java checks of each value that it takes out of a batch; it reads from a worker in
pieces of 256 KiB, not 64, into memory that begins with a page; and the first read takes some seconds less by
the Python of worker_python.py and by the fork server, which imports what the workers need while Java starts.
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

from ..runtime.logs import get
from .fork_server import ForkServer
from .java import java_home
from .source import register
from .worker_python import COMMAND, FORK_SERVER, NO_FORK_SERVER

log = get(__name__)

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 30.0
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
# `rep movsb`, by which Linux copies, is five times slower on AMD's Zen where the target begins up to 31 bytes
# behind the source within their pages: as Java's memory for reads does, after the 16 bytes of malloc
READ_OPTION = "-Dsun.nio.PageAlignDirectMemory=true"
ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_fork_server: ForkServer | None = None
"""Of the present Java."""


def local_session(app_name: str, cores: int = 2) -> SparkSession:
    """Starts (or returns) the session of this process, `local[cores]`, with the source `tidegate` registered.

    Raises java.JavaMissing when Spark cannot start for want of a Java.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = workers_python()
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["JAVA_HOME"] = str(java_home())
    _start_fork_server()
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in settings(cores).items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def _start_fork_server() -> None:
    """Before Java, which hands its address to the workers."""
    global _fork_server
    is_wanted = os.environ.get(FORK_SERVER) != NO_FORK_SERVER and workers_python() != sys.executable
    has_java = SparkContext._gateway is not None
    if _fork_server is not None or has_java or not is_wanted or sys.platform != "linux":
        return
    try:
        _fork_server = ForkServer()
    except OSError as error:  # the workers import by themselves
        log.warning("fork_server_not_started", reason=error)
        return
    os.environ[FORK_SERVER] = _fork_server.address


def _stop_fork_server() -> None:
    global _fork_server
    if _fork_server is not None:
        os.environ.pop(FORK_SERVER, None)
        _fork_server.close()
        _fork_server = None


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
    _stop_fork_server()


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
