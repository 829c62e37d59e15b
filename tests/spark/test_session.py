"""Starting Java from a process that already uses gRPC: PySpark forks to do so."""

from __future__ import annotations

import subprocess
import sys

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
    done = subprocess.run([sys.executable, "-c", FORK_OFTEN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fork" not in done.stderr, "gRPC's fork handlers ran"
