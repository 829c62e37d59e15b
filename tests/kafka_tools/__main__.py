"""Runs every tool of Kafka that needs no security, each against Tidegate and against a Kafka of the same
version, and compares.

    python -m tests.kafka_tools [--only WORD] [--write]

Ends with 1 when anything differs for which no reason is written down, or when a reason is not needed any
more.  `--write` puts the table of all cases into docs/kafka-tools.md.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.processes.local_cluster import LocalCluster

from bench.kafka_peer import VERSION, KafkaCluster, KafkaUnavailable

from .cases import CASES, MAINS, NOT_RUN, Case
from .jvm import ROOT, Outcome, ToolJvm, ToolsUnavailable, compiled, fetched
from .sameness import difference, normalised, without_explanations

PAGE = ROOT / "docs" / "kafka-tools.md"
SECURITY_TITLE = "\n## Tools for security\n"
"""What follows is made by `secured.py`."""
NODES = 3
SETTINGS = {
    "auto.create.topics.enable": False,
    "default.replication.factor": 3,
    "group.initial.rebalance.delay.ms": 100,
    "min.insync.replicas": 1,
}
KAFKA_SETTINGS = {
    "broker.rack": "rack-{node}",
    "group.initial.rebalance.delay.ms": 100,
    "log.segment.delete.delay.ms": None,  # Kafka's own default
    "min.insync.replicas": 1,
    "offsets.topic.num.partitions": 16,
    "transaction.state.log.num.partitions": 16,
}
TRIES = 15
KAFKA_READY_S = 120


@dataclass(frozen=True, slots=True)
class Target:
    """One cluster.  `names`: what stands for its addresses and folders when its answers are compared."""

    name: str
    bootstrap: str
    names: Mapping[str, str]
    folder: Path
    data: Path
    jvm: ToolJvm
    classes: tuple[Path, Path]

    def filled(self, text: str) -> list[str]:
        words = []
        for word in shlex.split(
            text.replace("{bootstrap}", self.bootstrap).replace("{folder}", str(self.folder))
        ):
            if word.startswith("{log:"):
                word = str(next(iter(sorted(self.data.rglob(f"{word[5:-1]}*/*.log"))), "none"))
            words.append(word)
        return words

    def call(self, tool: str, arguments: str) -> tuple[str, list[str]]:
        main, flag = MAINS[tool]
        words = self.filled(arguments)
        return main, [flag, self.bootstrap, *words] if flag and flag not in words else words

    def run(self, case: Case, beside: ToolJvm | None) -> Outcome:
        for name, content in case.files.items():
            (self.folder / name).write_text(content.replace("{data}", str(self.data)))
        if beside is not None:
            tool, _, arguments = case.beside.partition(" ")
            main, words = self.call(tool, arguments)
            beside.begin(main, words, timeout_ms=60_000)
        main, words = self.call(case.tool, case.arguments)
        jvm = ToolJvm(*self.classes) if case.own_process else self.jvm
        try:
            for _ in range(TRIES):
                outcome = jvm.run(main, words, case.text, 1000 * case.timeout_s, alone=case.own_process)
                if not case.until or case.until in outcome.out + outcome.err:
                    break
                time.sleep(1)
            return outcome
        finally:
            if case.own_process:
                jvm.close()


@dataclass(frozen=True, slots=True)
class Verdict:
    case: Case
    lines: list[str]
    seconds: Mapping[str, float]
    refused: bool
    in_words_of_its_own: bool

    @property
    def result(self) -> str:
        if not self.lines:
            words = ", in other words" if self.in_words_of_its_own else ""
            return f"refused as by Kafka{words}" if self.refused else "equal"
        return f"differs: {self.case.differs}" if self.case.differs else "**differs**"

    @property
    def unexplained(self) -> bool:
        return bool(self.lines) and not self.case.differs


def judge(case: Case, targets: list[Target], classes: tuple[Path, Path], texts: dict[str, str]) -> Verdict:
    seconds, refused = {}, False
    for target in targets:
        beside = ToolJvm(*classes) if case.beside else None
        began = time.monotonic()
        try:
            outcome = target.run(case, beside)
        finally:
            if beside is not None:
                beside.close()
        seconds[target.name] = time.monotonic() - began
        refused = refused or (outcome.code != 0 and not outcome.late)
        texts[target.name] = normalised(outcome, target.names, sort=case.sort, numbers=case.numbers)
    if len(targets) < 2:
        return Verdict(case, [], seconds, refused, False)
    tidegate, kafka = texts["Tidegate"], texts["Kafka"]
    lines = difference(tidegate, kafka)
    if not difference(without_explanations(tidegate), without_explanations(kafka)):
        return (
            Verdict(case, [], seconds, True, bool(lines))
            if lines
            else Verdict(case, [], seconds, refused, False)
        )
    return Verdict(case, lines, seconds, refused, False)


def judged_and_shown(
    case: Case, targets: list[Target], classes: tuple[Path, Path], keep: Path | None
) -> Verdict:
    """Prints the verdict, and adds to `keep` what the tools printed."""
    texts: dict[str, str] = {}
    verdict = judge(case, targets, classes, texts)
    times = ", ".join(f"{seconds:.1f} s" for seconds in verdict.seconds.values())
    sign = "FAIL" if verdict.unexplained else "ok  "
    print(f"{sign} {case.tool} {case.name} ({times}): {verdict.result}", flush=True)
    for line in verdict.lines if verdict.unexplained else []:
        print(f"       {line[:300]}", flush=True)
    if keep is not None:
        with keep.open("a") as file:
            for name, text in texts.items():
                file.write(f"\n===== {name}: {case.tool} {case.name}\n{text}\n")
    return verdict


def table(verdicts: list[Verdict]) -> str:
    tools = sorted({verdict.case.tool for verdict in verdicts})
    same = sum(not verdict.lines for verdict in verdicts)
    head = [
        f"# Kafka's own tools\n\nEvery command-line tool of Kafka {VERSION} that needs no security, "
        "run against three nodes of "
        f"Tidegate and against three nodes\nof Kafka {VERSION}: {len(verdicts)} calls of "
        f"{len(tools)} tools, of which {same} "
        "print the same. Ids, addresses and times are written alike\nfirst; where a tool measures, "
        "its numbers are left out. "
        "Made by `make foreign-tools`.\n\n| tool | not run because |\n|---|---|\n"
    ]
    head += [f"| {name} | {why} |\n" for name, why in NOT_RUN.items()]
    return "".join([*head, "\n", rows(verdicts)])


def rows(verdicts: list[Verdict]) -> str:
    made = ["| tool | arguments | Tidegate beside Kafka |\n|---|---|---|\n"]
    for verdict in verdicts:
        arguments = verdict.case.name.replace("|", "\\|")
        made.append(f"| {verdict.case.tool} | {f'`{arguments}`' if arguments else ''} | {verdict.result} |\n")
    return "".join(made)


def wait_for_kafka(jvm: ToolJvm, kafka: KafkaCluster) -> None:
    deadline = time.monotonic() + KAFKA_READY_S
    while time.monotonic() < deadline:
        kafka.check_running()
        outcome = jvm.run(
            MAINS["kafka-cluster"][0], ["list-endpoints", "--bootstrap-server", kafka.bootstrap], "", 20_000
        )
        if outcome.code == 0 and outcome.out.count("127.0.0.1") == NODES:
            return
        time.sleep(1)
    raise KafkaUnavailable("Kafka was not ready in time")


async def run(only: str, write: bool, alone: bool, keep: Path | None) -> int:
    libraries = fetched()
    classes = libraries, compiled(libraries)
    cases = [case for case in CASES if only in f"{case.tool} {case.arguments}"]
    with tempfile.TemporaryDirectory(prefix="kafka-tools-") as folder:
        root = Path(folder)
        kafka = KafkaCluster(root / "kafka", NODES, libraries, KAFKA_SETTINGS)
        jvms = [ToolJvm(*classes), ToolJvm(*classes)]
        async with LocalCluster(root / "tidegate", nodes=NODES, settings=SETTINGS) as cluster:
            try:
                names = {node.kafka_address: f"node-{node.id}" for node in cluster.nodes}
                names |= {f"127.0.0.1:{node.ports.quorum}": f"quorum-{node.id}" for node in cluster.nodes}
                targets = [
                    target(
                        "Tidegate",
                        cluster.bootstrap,
                        names,
                        root,
                        cluster.node(1).data_path,
                        jvms[0],
                        classes,
                    )
                ]
                if not alone:
                    kafka.format()
                    kafka.start()
                    wait_for_kafka(jvms[1], kafka)
                    own = {address: f"node-{n}" for n, address in enumerate(kafka.bootstrap.split(","), 1)}
                    own |= {address: f"quorum-{n}" for n, address in enumerate(kafka.quorum.split(","), 1)}
                    data = root / "kafka" / "kafka-1" / "data"
                    targets.append(target("Kafka", kafka.bootstrap, own, root, data, jvms[1], classes))
                verdicts = [judged_and_shown(case, targets, classes, keep) for case in cases]
            finally:
                kafka.stop()
                for jvm in jvms:
                    jvm.close()
    wrong = sum(verdict.unexplained for verdict in verdicts)
    stale = [
        verdict.case
        for verdict in verdicts
        if verdict.case.differs and not verdict.lines and len(targets) == 2
    ]
    for case in stale:
        print(f"no reason is needed any more: {case.tool} {case.name}")
    print(f"{len(verdicts)} calls, {wrong} differ without a reason, {len(stale)} reasons are stale")
    if write:
        others = PAGE.read_text().partition(SECURITY_TITLE)[2]
        PAGE.write_text(table(verdicts) + (SECURITY_TITLE + others if others else ""))
    return int(wrong > 0 or bool(stale))


def target(
    name: str,
    bootstrap: str,
    names: Mapping[str, str],
    root: Path,
    data: Path,
    jvm: ToolJvm,
    classes: tuple[Path, Path],
) -> Target:
    folder = root / f"files-{name}"
    folder.mkdir()
    hidden = {str(folder): "<folder>", str(data): "<data>"}
    return Target(name, bootstrap, {**names, **hidden}, folder, data, jvm, classes)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kafka_tools", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="cases in whose call this stands")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument(
        "--alone", action="store_true", help="Tidegate alone, without a Kafka to compare with"
    )
    parser.add_argument("--keep", type=Path, help="a file for what the tools printed")
    arguments = parser.parse_args()
    try:
        return asyncio.run(run(arguments.only, arguments.write, arguments.alone, arguments.keep))
    except (ToolsUnavailable, KafkaUnavailable) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
