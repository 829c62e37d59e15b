"""Tidegate beside Apache Kafka: the same client, the same machine, the same minutes.

    python -m bench.compare --nodes 1|3 [--tls --sasl] [--seconds 6] [--rounds 3] [--no-kafka] [--json FILE]
    [--directory DIR] [--cache DIR]

Both clusters run during the whole comparison and take turns, in another order in each round; nothing is
pinned.  Every figure is the median of the rounds, with the lowest and highest beside it.  Three columns:

* Tidegate: acks=all means replicated *and flushed to disk* by the in-sync replicas;
* Tidegate, flush.policy=os: acks=all means replicated, as in Kafka, which leaves the flush to the operating
  system;
* Kafka: its defaults.

With `--tls --sasl` clients log in by SCRAM-SHA-512 over TLS, nodes speak to each other by mutual TLS, and the
user of the workloads has ACLs and quotas (secured.py), in Kafka too.  A fourth column is a Tidegate with the
same listeners and without authorizer and quotas: the last ratio is what these cost.  (The audit log has no
line for a request that is allowed and changes no metadata.)

The client is librdkafka.  "broker" is the CPU time of all broker processes, "client" that of this process:
where the client needs a whole core, the figure is rather the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import confluent_kafka
from tidegate.processes.local_cluster import LocalCluster

from .kafka_peer import VERSION, KafkaCluster, KafkaUnavailable, default_cache, jars
from .process_cost import cpu_seconds, resident_mib
from .secured import AUTHORIZER_OFF, LISTENER, NODES, RIGHTS, kafka_settings, log_in
from .workloads import Figures, Target, bulk, create_topic, latency, transactions

IDLE_S = 4.0
TRANSACTION_PRODUCERS = (1, 8)
DISK_PROBE_WRITES = 200
DISK_PROBE_BYTES = 4096

TIDEGATE, TIDEGATE_OS, NO_ACLS, KAFKA = "Tidegate", "Tidegate os", "Tidegate no ACLs", "Kafka"
COLUMNS = (TIDEGATE, TIDEGATE_OS, NO_ACLS, KAFKA)
RATIOS = ((TIDEGATE, KAFKA, "T / K"), (TIDEGATE_OS, KAFKA, "os / K"), (TIDEGATE, NO_ACLS, "T / no ACLs"))


@dataclass(slots=True)
class Samples:
    """All figures so far: workload -> figure -> target -> one value a round."""

    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)

    def add(self, workload: str, target: str, figures: Figures) -> None:
        for name, value in figures.items():
            self.values.setdefault(workload, {}).setdefault(name, {}).setdefault(target, []).append(value)


# What the table shows: workload, figure, label, digits, whether more is better.
ROWS: list[tuple[str, str, str, int, bool]] = [
    ("produce 100 B", "records_per_s", "produce 100 B: records/s", 0, True),
    ("produce 100 B", "mb_per_s", "produce 100 B: MB/s", 1, True),
    ("produce 100 B", "broker_cpu_s_per_million", "  broker CPU s / million records", 2, False),
    ("produce 100 B", "broker_cores", "  broker cores used", 2, False),
    ("produce 100 B", "client_cores", "  client cores used", 2, False),
    ("produce 1 KiB", "records_per_s", "produce 1 KiB: records/s", 0, True),
    ("produce 1 KiB", "mb_per_s", "produce 1 KiB: MB/s", 1, True),
    ("produce 1 KiB", "broker_cpu_s_per_million", "  broker CPU s / million records", 2, False),
    ("produce 1 KiB", "broker_cores", "  broker cores used", 2, False),
    ("produce 1 KiB idempotent", "mb_per_s", "produce 1 KiB idempotent: MB/s", 1, True),
    ("consume 1 KiB", "records_per_s", "consume 1 KiB: records/s", 0, True),
    ("consume 1 KiB", "mb_per_s", "consume 1 KiB: MB/s", 1, True),
    ("consume 1 KiB", "broker_cpu_s_per_million", "  broker CPU s / million records", 2, False),
    ("consume 1 KiB", "client_cores", "  client cores used", 2, False),
    ("latency", "p50_ms", "one record a request: p50 ms", 3, False),
    ("latency", "p99_ms", "one record a request: p99 ms", 3, False),
    ("latency", "broker_cpu_us_per_request", "  broker CPU us / request", 0, False),
    ("transactions x1", "transactions_per_s", "transactions/s, 1 producer", 1, True),
    ("transactions x8", "transactions_per_s", "transactions/s, 8 producers", 1, True),
    ("transactions x8", "broker_cpu_ms_per_transaction", "  broker CPU ms / transaction", 2, False),
    ("start", "seconds", "start to first topic: s", 2, False),
    ("memory", "ready_mib", "brokers' memory when ready: MiB", 0, False),
    ("memory", "after_mib", "brokers' memory at the end: MiB", 0, False),
    ("idle", "cores", "idle: broker cores used", 3, False),
]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_round(targets: list[Target], seconds: float, samples: Samples) -> None:
    """Each workload on each target, in the order given."""

    def each(label: str, work: Callable[[Target], None]) -> None:
        for target in targets:
            begin = time.monotonic()
            work(target)
            os.sync()  # dirty pages of one must not be written during the other's turn
            say(f"    {label:26} {target.name:16} {time.monotonic() - begin:5.1f} s")

    def produce(label: str, size: int, *, idempotent: bool = False, consume: str = "") -> None:
        def work(target: Target) -> None:
            produced, consumed = bulk(target, seconds, size, idempotent=idempotent, consume=bool(consume))
            samples.add(label, target.name, produced)
            if consumed is not None:
                samples.add(consume, target.name, consumed)

        each(label, work)

    produce("produce 100 B", 100)
    produce("produce 1 KiB", 1024, consume="consume 1 KiB")
    produce("produce 1 KiB idempotent", 1024, idempotent=True)
    each("latency", lambda target: samples.add("latency", target.name, latency(target, seconds / 2)))
    for producers in TRANSACTION_PRODUCERS:
        label = f"transactions x{producers}"

        def commit(target: Target, label: str = label, producers: int = producers) -> None:
            samples.add(label, target.name, transactions(target, seconds / 2, producers))

        each(label, commit)


def warm_up(targets: list[Target], seconds: float) -> None:
    """Warms up just-in-time compilers, page caches and connections; its results do not count."""
    for target in targets:
        bulk(target, seconds, 1024, idempotent=False, consume=True)
        bulk(target, seconds, 100, idempotent=True, consume=False)
        latency(target, seconds)
        transactions(target, seconds, 2)


def disk_probe(directory: Path) -> Figures:
    """The time of one flush of a small write on this disk: the lower bound of every acks=all of Tidegate."""
    path = directory / "probe"
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    times = []
    try:
        for _ in range(DISK_PROBE_WRITES):
            os.write(handle, bytes(DISK_PROBE_BYTES))
            begin = time.perf_counter()
            os.fdatasync(handle)
            times.append((time.perf_counter() - begin) * 1e3)
    finally:
        os.close(handle)
        path.unlink()
    cuts = statistics.quantiles(times, n=100)
    return {"fdatasync_p50_ms": cuts[49], "fdatasync_p99_ms": cuts[98]}


async def start_tidegate(
    directory: Path, nodes: int, samples: Samples, *, name: str = TIDEGATE, secured: bool = False
) -> tuple[LocalCluster, Target]:
    has_authorizer = secured and name != NO_ACLS
    off = AUTHORIZER_OFF if secured and not has_authorizer else {}
    cluster = LocalCluster(directory / name.replace(" ", "-"), nodes, off, with_users=secured)
    begin = time.perf_counter()
    try:
        await cluster.up(120)
        login: dict[str, str] = {}
        if secured:
            rights = RIGHTS if has_authorizer else ()
            login = await log_in(
                cluster.bootstrap, cluster.security, cluster.certificates.authorities, rights
            )
        pids = [node.pid for node in cluster.nodes if node.pid is not None]
        target = Target(name, cluster.bootstrap, pids, min(3, nodes), {}, login)
        await asyncio.to_thread(create_topic, target, "ready", 1, 120.0)
    except BaseException:
        await cluster.down()
        raise
    samples.add("start", name, {"seconds": time.perf_counter() - begin})
    return cluster, target


async def start_kafka(
    directory: Path, nodes: int, libraries: Path, samples: Samples, *, secured: bool = False
) -> tuple[KafkaCluster, Target]:
    tls = directory / "kafka-tls"
    wanted = kafka_settings(tls, nodes) if secured else {}
    listeners = (LISTENER, NODES) if secured else ()
    cluster = KafkaCluster(directory / "kafka", nodes, libraries, wanted, listeners=listeners)
    await asyncio.to_thread(cluster.format)
    begin = time.perf_counter()
    try:
        cluster.start()
        target = Target(
            KAFKA, cluster.bootstrap, cluster.pids, min(3, nodes), {"file.delete.delay.ms": "1000"}
        )
        await asyncio.to_thread(create_topic, target, "ready", 1, 120.0)
        if secured:
            login = await log_in(cluster.bootstrap, None, tls / "ca.pem", RIGHTS)
            target = replace(target, bootstrap=cluster.addresses(LISTENER), login=login)
        cluster.check_running()
    except BaseException:
        cluster.stop()
        raise
    samples.add("start", KAFKA, {"seconds": time.perf_counter() - begin})
    return cluster, target


async def compare(
    arguments: argparse.Namespace, libraries: Path | None, directory: Path
) -> dict[str, object]:
    """The whole comparison; stops everything it started."""
    samples = Samples()
    disk = disk_probe(directory)
    nodes, secured = arguments.nodes, arguments.tls
    clusters_up: list[LocalCluster] = []
    targets: list[Target] = []
    kafka: KafkaCluster | None = None
    try:
        for name in (TIDEGATE, NO_ACLS) if secured else (TIDEGATE,):
            cluster, target = await start_tidegate(directory, nodes, samples, name=name, secured=secured)
            clusters_up.append(cluster)
            targets.append(target)
        targets.insert(1, replace(targets[0], name=TIDEGATE_OS, topic_config={"flush.policy": "os"}))
        if libraries is not None:
            kafka, target = await start_kafka(directory, nodes, libraries, samples, secured=secured)
            targets.append(target)
        clusters = [target for target in targets if target.name != TIDEGATE_OS]
        for target in clusters:
            samples.add("memory", target.name, {"ready_mib": resident_mib(target.pids)})
        say("warm-up")
        await asyncio.to_thread(warm_up, targets, min(2.0, arguments.seconds / 2))
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}")
            turn = number % len(targets)
            await asyncio.to_thread(
                measure_round, targets[turn:] + targets[:turn], arguments.seconds, samples
            )
        before = [cpu_seconds(target.pids) for target in clusters]
        await asyncio.sleep(IDLE_S)
        for target, earlier in zip(clusters, before, strict=True):
            samples.add("idle", target.name, {"cores": (cpu_seconds(target.pids) - earlier) / IDLE_S})
            samples.add("memory", target.name, {"after_mib": resident_mib(target.pids)})
    finally:
        if kafka is not None:
            kafka.stop()
        for cluster in clusters_up:
            await cluster.down()
    return {
        "nodes": nodes,
        "secured": secured,
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            "kafka": VERSION if kafka is not None else None,
            "load_average_before": arguments.load,
            "load_average_after": os.getloadavg()[0],
            **disk,
        },
        "samples": samples.values,
    }


def table(report: dict[str, object]) -> str:
    """The report as lines of text."""
    samples: dict[str, dict[str, dict[str, list[float]]]] = report["samples"]  # type: ignore[assignment]
    machine: dict[str, object] = report["machine"]  # type: ignore[assignment]
    measured = {name for figures in samples.values() for found in figures.values() for name in found}
    columns = [name for name in COLUMNS if name in measured]
    ratios = [ratio for ratio in RATIOS if measured.issuperset(ratio[:2])]
    heads = "".join(f"{name:>33}" for name in columns) + "".join(f"  {label}" for _, _, label in ratios)
    lines = [f"{'':36}{heads}"]
    for workload, figure, label, digits, more_is_better in ROWS:
        found = samples.get(workload, {}).get(figure)
        if found is None:
            continue
        line = f"{label + ('' if more_is_better else ' (-)'):36}"
        for name in columns:
            values = found.get(name)
            line += f"{_cell(values, digits) if values else '':>33}"
        for name, base_name, label in ratios:
            values, base = found.get(name), found.get(base_name)
            quotient = (
                f"{statistics.median(values) / statistics.median(base):.2f}"
                if values and base and statistics.median(base) > 0
                else ""
            )
            line += f"  {quotient:>{len(label)}}"
        lines.append(line.rstrip())
    lines.append("median (lowest-highest) of the rounds; (-): less is better")
    facts = (
        f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in machine.items()
    )
    lines.append(", ".join(facts))
    return "\n".join(lines)


def _cell(values: list[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--tls", action="store_true", help="with --sasl: over TLS, and nodes by mutual TLS")
    parser.add_argument("--sasl", action="store_true", help="with --tls: by SCRAM-SHA-512; ACLs, quotas")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="length of a bulk run; latency and transactions take half"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true", help="Tidegate alone")
    parser.add_argument("--json", type=Path, help="write all samples here")
    parser.add_argument(
        "--directory", type=Path, help="where the clusters keep their data (default: a temporary folder)"
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where Kafka's jars are kept")
    arguments = parser.parse_args()
    if arguments.tls != arguments.sasl:
        parser.error("--tls and --sasl come together: the listener that is measured is SASL_SSL")
    arguments.load = os.getloadavg()[0]
    libraries: Path | None = None
    if not arguments.no_kafka:
        try:
            libraries = jars(arguments.cache)
        except KafkaUnavailable as error:
            say(f"without Kafka: {error}")
    directory = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=arguments.directory))
    try:
        report = asyncio.run(compare(arguments, libraries, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(table(report))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
