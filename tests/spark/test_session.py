"""Starting Java from a process that already uses gRPC: PySpark forks to do so."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORK_OFTEN = """
import asyncio, subprocess
import tidegate
from tidegate.runtime.network import grpc_channel, grpc_server

async def main():
    server = grpc_server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc_channel(f"127.0.0.1:{port}")
    await channel.channel_ready()
    for _ in range(200):
        child = subprocess.Popen(["true"], preexec_fn=lambda: None)  # what pyspark.java_gateway does
        assert child.wait(10) == 0, child.returncode
        await asyncio.sleep(0)
    await channel.close()
    await server.stop(0)

asyncio.run(main())
"""


def test_children_start_from_a_process_whose_threads_use_grpc() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_OFTEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fork" not in done.stderr, "gRPC's fork handlers ran"


START_AND_STOP = """
import os, subprocess
from tidegate.spark.session import local_session, stop_session

for count in (3, 4):
    session = local_session("again")
    assert session.range(count).count() == count
    of_worker = session.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__)
    assert ".zip" not in of_worker.first()
    command = ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    servers = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    (server,) = [int(line.split()[0]) for line in servers if "fork_server" in line]
    parents = session.sparkContext.parallelize([0], 1).map(lambda _: __import__("os").getppid())
    path = f"/proc/{parents.first()}/stat"  # of the daemon, which forks the workers
    assert int(open(path).read().split()[3]) == server
    stop_session(session)
    assert "TIDEGATE_SPARK_FORK_SERVER" not in os.environ
    command = ["ps", "-o", "comm=", "--ppid", str(os.getpid())]
    children = subprocess.run(command, capture_output=True, text=True).stdout
    assert not {"java", "python"} & set(children.split()), children
"""


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_stopped_session_leaves_no_java_and_another_may_be_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", START_AND_STOP], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
