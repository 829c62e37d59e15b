"""Kafka's own tools, of the version beside which Tidegate is held: fetched with Maven, and all of them run in
one Java process.

A Java process takes a second or two to start, and there are some two hundred calls: `ToolRunner.java` runs
their main classes one after the other.  Everything lies in FOLDER, which git ignores.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.kafka_peer import VERSION

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "kafka-tools"
SOURCE = Path(__file__).with_name("ToolRunner.java")
FETCH_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>kafka-tools</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
</dependencies></project>
"""


class ToolsUnavailable(Exception):
    """Kafka's tools cannot be had here; one sentence that says why."""


def fetched() -> Path:
    """The folder with the tools' jars.  Raises ToolsUnavailable."""
    libraries = FOLDER / f"libs-{VERSION}"
    if libraries.is_dir():
        return libraries
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise ToolsUnavailable(f"there is no `{program}` on the path")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "pom.xml").write_text(POM.format(version=VERSION))
    partial = FOLDER / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={partial}",
    ]
    done = subprocess.run(
        command, cwd=FOLDER, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ToolsUnavailable(
            f"mvn could not fetch Kafka {VERSION}: {(done.stdout or done.stderr).strip()[:300]}"
        )
    partial.rename(libraries)
    return libraries


def compiled(libraries: Path) -> Path:
    classes = FOLDER / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    command = ["javac", "--release", "17", "-cp", f"{libraries}/*", "-d", str(classes), str(SOURCE)]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    return classes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool printed, and its exit code.  `late`: it had to be ended."""

    code: int
    out: str
    err: str
    late: bool = False
    where: str = ""


class ToolJvm:
    """One Java process for many calls; ends with its input."""

    def __init__(self, libraries: Path, classes: Path) -> None:
        lean = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m"]
        self._process = subprocess.Popen(
            ["java", *lean, "-cp", f"{classes}:{libraries}/*", "ToolRunner"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def begin(
        self,
        main: str,
        arguments: list[str],
        text: str = "",
        timeout_ms: int = 60_000,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: the tool ends with the last of its threads, as a process does; for a JVM that runs nothing
        else."""
        assert self._process.stdin is not None
        call = {"main": main, "arguments": arguments, "input": text, "timeout_ms": timeout_ms, "alone": alone}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()

    def end(self) -> Outcome:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ToolsUnavailable("the Java process ended")
        answer = json.loads(line)
        return Outcome(answer["code"], answer["out"], answer["err"], answer["late"], answer.get("where", ""))

    def run(
        self,
        main: str,
        arguments: list[str],
        text: str = "",
        timeout_ms: int = 60_000,
        *,
        alone: bool = False,
    ) -> Outcome:
        self.begin(main, arguments, text, timeout_ms, alone=alone)
        return self.end()

    def close(self) -> None:
        """Also in the middle of a call."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
