"""Kafka clients that are not Python, for tests: where they are, how they get there, how a test asks them what
they saw.

`make foreign-clients` runs this file.  It fetches the libraries with Maven, npm and Go, compiles the programs
in Java and Go, and does nothing for what is current; `make foreign-systems` has it do the same for whole
systems that work on Kafka (tests/systems). Everything lies in FOLDER, which git ignores.  Where a tool or its
registry is missing it says so, and so does every test that is then skipped; a program of ours that does not
compile is an error in both places.

A program is started once for many cases: `PROGRAM bootstrap-servers case ...`.  It runs the cases side by
side and prints one line of JSON for each, `{"case": name, "saw": {...}}` or `{"case": name, "failed": "stack
trace"}`; what it saw is judged by the test.  It ends with its last case, and at once when its standard input
is closed: none outlives the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "foreign-clients"
SOURCES = ROOT / "tests" / "clients"
FETCH_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120
END_TIMEOUT_S = 15
MANIFESTS = ("pom.xml", "package.json", "go.mod")
HOW_TO_INSTALL = "make foreign-clients"


class Missing(Exception):
    """The client cannot be had here; says why."""


class Broken(Exception):
    """Our own program for the client does not compile."""


@dataclass(frozen=True)
class Client:
    """One client, in one range of versions.  `program` is the folder of its sources; `tools` are the commands
    it needs."""

    name: str
    program: str
    versions: str
    tools: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def manifest(self) -> str:
        """What names the libraries, and so the language."""
        return next(name for name in MANIFESTS if (SOURCES / self.program / name).is_file())

    @property
    def reason(self) -> Path:
        """Why the last installation failed."""
        return FOLDER / f"{self.name}.missing"

    def sources(self) -> list[Path]:
        return sorted(path for path in (SOURCES / self.program).rglob("*") if path.is_file())


_MAVEN = ("mvn", "java", "javac")
# What is not released yet sorts before the release: the ranges end before the first alpha of what they leave
# out.
CLIENTS = {
    client.name: client
    for client in (
        Client("java-3.9", "java", "[3.9,3.10-alpha)", _MAVEN),
        Client("java-4", "java", "[4,5-alpha)", _MAVEN),
        Client("kafkajs", "kafkajs", "", ("npm", "node")),
        Client("platformatic", "platformatic", "", ("npm", "node")),
        Client("sarama", "go", "", ("go",)),
        Client("kafka-go", "go", "", ("go",)),
    )
}
SYSTEMS = {
    client.name: client
    for client in (
        Client("streams", "streams", "4.1.1", _MAVEN),
        Client("flink", "flink", "2.2.0", _MAVEN),
        Client("kafka-tools", "kafka-tools", "4.1.1", _MAVEN),
    )
}


# --- installation -------------------------------------------------------------------------------------------


def install(client: Client) -> str:
    """Fetches and builds what is not current; says what it did.  Raises Missing or Broken."""
    done = [
        what
        for what, step, inputs in (
            ("fetched", _fetch, [path for path in client.sources() if path.name in MANIFESTS]),
            ("built", _build, client.sources()),
        )
        if _unless_current(client, what, inputs, step)
    ]
    client.reason.unlink(missing_ok=True)
    return " and ".join(done) or "is current"


def _unless_current(
    client: Client, what: str, inputs: Iterable[Path], step: Callable[[Client], None]
) -> bool:
    stamp, wanted = client.folder / what, fingerprint(client, inputs)
    if stamp.is_file() and stamp.read_text() == wanted:
        return False
    stamp.unlink(missing_ok=True)
    step(client)
    stamp.write_text(wanted)
    return True


def fingerprint(client: Client, inputs: Iterable[Path]) -> str:
    digest = hashlib.sha256(repr(client).encode())
    for path in inputs:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _fetch(client: Client) -> None:
    for tool in client.tools:
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed")
    shutil.rmtree(client.folder, ignore_errors=True)
    client.folder.mkdir(parents=True)
    match client.manifest:
        case "pom.xml":
            pom = SOURCES / client.program / "pom.xml"
            options = [f"-Dclients={client.versions}", f"-Dfolder={client.folder}"]
            _run(
                ["mvn", "-B", "-q", "-f", str(pom), *options, "dependency:copy-dependencies"],
                FETCH_TIMEOUT_S,
                Missing,
            )
        case "package.json":
            shutil.copy(SOURCES / client.program / "package.json", client.folder)
            command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            _run([*command, "--prefix", str(client.folder)], FETCH_TIMEOUT_S, Missing)
        case "go.mod":
            # The checksums of the modules are not kept here: Go's own checksum database vouches for them.
            _copy(client, ".mod", ".go")
            _run(["go", "-C", str(client.folder), "mod", "tidy"], FETCH_TIMEOUT_S, Missing)
        case unknown:
            raise AssertionError(unknown)


def _copy(client: Client, *suffixes: str) -> None:
    for path in client.sources():
        if path.suffix in suffixes:
            shutil.copy(path, client.folder)


def _build(client: Client) -> None:
    match client.manifest:
        case "pom.xml":
            shutil.rmtree(client.folder / "classes", ignore_errors=True)
            sources = [str(path) for path in client.sources() if path.suffix == ".java"]
            libraries, classes = client.folder / "dependency" / "*", client.folder / "classes"
            if sources:  # the tools of Kafka itself need no program of ours
                _run(
                    ["javac", "--release", "17", "-cp", str(libraries), "-d", str(classes), *sources],
                    COMPILE_TIMEOUT_S,
                    Broken,
                )
        case "go.mod":
            _copy(client, ".go")
            _run(
                ["go", "-C", str(client.folder), "build", "-mod=mod", "-o", "program", "."],
                COMPILE_TIMEOUT_S,
                Broken,
            )
        case _:
            pass  # nothing to compile


def _run(command: Sequence[str], timeout_s: float, failure: type[Exception]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise failure(f"{command[0]} did not end within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise failure(
            f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )


def main(wanted: str = "clients") -> int:
    """0 when every client, or every system, is there."""
    code = 0
    for client in (SYSTEMS if wanted == "systems" else CLIENTS).values():
        try:
            print(f"{client.name}: {install(client)}")
        except (Missing, Broken) as error:
            code = 1
            FOLDER.mkdir(parents=True, exist_ok=True)
            client.reason.write_text(str(error))
            print(f"{client.name}: {error}", file=sys.stderr)
    return code


# --- use ----------------------------------------------------------------------------------------------------


def command_for(name: str) -> tuple[list[str], dict[str, str]]:
    """The command that starts the client's program, and its environment.  Raises Missing, with how to mend
    it, or Broken."""
    client = (CLIENTS | SYSTEMS)[name]
    built = client.folder / "built"
    if not built.is_file():
        why = client.reason.read_text().strip() if client.reason.is_file() else "it was not asked for"
        if (client.folder / "fetched").is_file():
            raise Broken(f"the program for {name} is not built: {why}")
        raise Missing(f"the client {name} is not installed ({why.splitlines()[0]}): {HOW_TO_INSTALL}")
    if built.read_text() != fingerprint(client, client.sources()):
        raise Broken(f"the program for {name} is older than its sources: {HOW_TO_INSTALL}")
    match client.manifest:
        case "pom.xml":
            classes = f"{client.folder / 'classes'}{os.pathsep}{client.folder / 'dependency' / '*'}"
            lean = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
            return [
                "java",
                *lean,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                classes,
                "Main",
            ], {}
        case "package.json":
            return ["node", str(SOURCES / client.program / "main.js")], {
                "NODE_PATH": str(client.folder / "node_modules")
            }
        case _:
            return [str(client.folder / "program"), client.name], {}


class Program:
    """A client's program at work on its cases."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        cases: Sequence[str],
        log: Path,
        more_environment: dict[str, str] | None = None,
    ) -> None:
        command, environment = command_for(name)
        self.name = name
        self._log = log
        self._reports: dict[str, dict[str, Any]] = {}
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, bootstrap, *cases],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | environment | (more_environment or {}),
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put(None)

    def saw(self, case: str, timeout_s: float) -> dict[str, Any]:
        """What the client saw in this case; an AssertionError with the client's own words when the case
        failed or is late."""
        deadline = time.monotonic() + timeout_s
        while case not in self._reports:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(
                    f"{case}: nothing within {timeout_s:g} s; {self._last_words()}"
                ) from None
            if line is None:
                self._lines.put(None)
                raise AssertionError(f"the program ended without a word of {case}; {self._last_words()}")
            report = json.loads(line)
            self._reports[report["case"]] = report
        report = self._reports[case]
        assert "failed" not in report, f"{case}: {report['failed']}\n{self._last_words()}"
        saw: dict[str, Any] = report["saw"]
        return saw

    def _last_words(self) -> str:
        return "the program's log ends:\n" + self._log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """Ends the program.  AssertionError when it does not end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"the program ran on after its input was closed; {self._last_words()}"
            ) from None
        finally:
            self._reader.join(END_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
