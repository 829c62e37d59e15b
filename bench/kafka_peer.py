"""Apache Kafka beside Tidegate on the same machine: fetches the jars with Maven and runs brokers in KRaft
mode on loopback.

    python -m bench.kafka_peer [--cache DIR] [--version 4.1.1]      # only fetches the jars

Needs Java 17 and `mvn` on the path; Tidegate itself needs neither.  The jars go into a cache folder outside
the repository. The brokers run with Kafka's own defaults (threads, no fsync of data, G1 as its start script
sets it); only addresses, folders, replication factors and the delay of deletions are set.  They die with the
process that started them.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

VERSION = "4.1.1"
HOST = "127.0.0.1"
HEAP = ["-Xms512m", "-Xmx1g"]
# What Kafka's start script gives the JVM.
JVM = ["-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
       "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"]  # fmt: skip
FETCH_TIMEOUT_S = 600
STOP_TIMEOUT_S = 20
PR_SET_PDEATHSIG = 1
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be had here; one sentence that says why."""


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate-bench"


def jars(cache: Path | None = None, version: str = VERSION) -> Path:
    """The folder with the jars of this version, fetched when it is not there.  Raises KafkaUnavailable."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise KafkaUnavailable(f"there is no `{program}` on the path")
    directory = (cache or default_cache()) / f"kafka-{version}"
    libraries = directory / "libs"
    if libraries.is_dir():
        return libraries
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pom.xml").write_text(POM.format(version=version))
    partial = directory / f"partial-{os.getpid()}"
    command = [
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={partial}",
    ]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable(f"mvn did not fetch the jars in {FETCH_TIMEOUT_S} s") from error
    if done.returncode or not list(partial.glob("kafka_2.13-*.jar")):
        shutil.rmtree(partial, ignore_errors=True)
        raise KafkaUnavailable(
            f"mvn could not fetch Kafka {version}: {(done.stdout or done.stderr).strip()[:300]}"
        )
    partial.rename(libraries)
    return libraries


def free_ports(count: int) -> list[int]:
    """Ports that are free now, each only once."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind((HOST, 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


class KafkaCluster:
    """Nodes 1..n, each broker and controller, as `LocalCluster` is for Tidegate."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        libraries: Path,
        settings: Mapping[str, object] | None = None,
        *,
        listeners: Sequence[str] = (),
    ) -> None:
        """`listeners`: more than PLAINTEXT, each by its security protocol."""
        self._directory = directory
        self._libraries = libraries
        self._settings = dict(settings or {})
        self._nodes = range(1, nodes + 1)
        names = ("PLAINTEXT", "CONTROLLER", *listeners)
        ports = free_ports(len(names) * nodes)
        self._ports = {name: ports[at * nodes : (at + 1) * nodes] for at, name in enumerate(names)}
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        return self.addresses("PLAINTEXT")

    @property
    def quorum(self) -> str:
        return self.addresses("CONTROLLER")

    def addresses(self, listener: str) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._ports[listener])

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def format(self) -> None:
        """Makes the data folders, as an operator does once before the first start."""
        for node in self._nodes:
            self._directory_of(node).mkdir(parents=True)
            self._properties(node).write_text(self._configuration(node))
            command = self._java(
                "kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(self._properties(node))
            )
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise KafkaUnavailable(
                    f"the data folder could not be formatted: {(done.stderr or done.stdout).strip()[-300:]}"
                )

    def start(self) -> None:
        """Starts the brokers; does not wait.  Call it from the main thread: they get SIGKILL when the calling
        thread ends."""
        libc = ctypes.CDLL(None)

        def die_with_the_starter() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        for node in self._nodes:
            with open(self._directory_of(node) / "kafka.log", "wb") as log:
                command = self._java(*HEAP, *JVM, "kafka.Kafka", str(self._properties(node)))
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                        preexec_fn=die_with_the_starter,
                    )
                )

    def check_running(self) -> None:
        """Raises KafkaUnavailable when a broker has ended."""
        for node, process in zip(self._nodes, self._processes, strict=True):
            if process.poll() is not None:
                tail = (self._directory_of(node) / "kafka.log").read_text(errors="replace").strip()[-300:]
                raise KafkaUnavailable(f"broker {node} ended with exit code {process.returncode}: {tail}")

    def stop(self) -> None:
        """SIGTERM, then SIGKILL for a process that does not end in time."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-cp", f"{self._libraries}/*", *arguments]

    def _directory_of(self, node: int) -> Path:
        return self._directory / f"kafka-{node}"

    def _properties(self, node: int) -> Path:
        return self._directory_of(node) / "server.properties"

    def _configuration(self, node: int) -> str:
        replicas = min(3, len(self._nodes))
        safe = 2 if replicas == 3 else 1
        listeners = {name: f"{name}://{HOST}:{ports[node - 1]}" for name, ports in self._ports.items()}
        values = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(
                f"{n}@{HOST}:{self._ports['CONTROLLER'][n - 1]}" for n in self._nodes
            ),
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(
                each for name, each in listeners.items() if name != "CONTROLLER"
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in listeners
            ),
            "log.dirs": self._directory_of(node) / "data",
            "default.replication.factor": replicas,
            "min.insync.replicas": safe,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": safe,
            "auto.create.topics.enable": "false",
            "log.segment.delete.delay.ms": 1000,  # the default of a minute would keep every run's gigabytes
        }
        settings = {key: value for key, value in (values | self._settings).items() if value is not None}
        return "".join(f"{key}={value}\n" for key, value in settings.items()).replace("{node}", str(node))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kafka_peer", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--version", default=VERSION)
    arguments = parser.parse_args()
    print(jars(arguments.cache, arguments.version))


if __name__ == "__main__":
    main()
