"""Starts a process with a Spark session, gives it work, and kills it with its Java."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

PAUSE_S: Final = 0.02
ANSWER_S: Final = 400.0
END_S: Final = 60.0


class SparkEnded(RuntimeError):
    """The process ended by itself."""


class SparkProcess:
    """`ask` one thing at a time; `close` or `kill` at the end."""

    def __init__(self, folder: Path, master: str, jars: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._answers = 0
        environment = os.environ | {"SPARK_WORKER_DIR": str(folder / "executors")}
        if jars:
            environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
        self._log = (folder / "spark.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.tests.exactly_once.spark_child", master],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, env=environment, cwd=folder,
            start_new_session=True,
        )  # fmt: skip

    async def ask(
        self, command: dict[str, Any], meanwhile: Callable[[], Awaitable[bool]]
    ) -> dict[str, Any] | None:
        """The answer; None when `meanwhile()`, which is called again and again, says that it has killed the
        process."""
        self._answers += 1
        place = self._folder / f"answer-{self._answers}.json"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command | {"answer": str(place)}).encode() + b"\n")
        self._process.stdin.flush()
        async with asyncio.timeout(ANSWER_S):
            while not place.exists():
                if await meanwhile():
                    return None
                if self._process.poll() is not None:
                    raise SparkEnded(f"Spark ended with {self._process.returncode}: see {self._log.name}")
                await asyncio.sleep(PAUSE_S)
        found: dict[str, Any] = json.loads(place.read_text())
        return found

    def kill(self) -> None:
        """The process, its Java, and the executors."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def close(self) -> None:
        """Ends the session."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()
