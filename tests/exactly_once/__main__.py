"""200 runs, and the control, with a table of what they have shown.

    python -m tests.exactly_once [--jars DIR] [--runs 200] [--only WORDS] [--control-only]

Needs `mvn` on the path to fetch the connector's jars, unless --jars names a folder that has them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tidegate.bench.spark_streams import jars
from tidegate.client import LocalCluster

from .harness import CONNECTOR, OURS, SETTINGS, Harness, Sink, Verdict
from .steps import CONTROL, STEPS, Step


def chosen(steps: tuple[Step, ...], runs: int, only: str) -> list[Step]:
    """One step a run.  Those with sessions of their own come last: a change of the session costs seconds."""
    wanted = [step for step in steps if only in f"{step.name}, {step.workload}"]
    wanted.sort(key=lambda step: step.action == "kill JVM")
    rounds = [step for step in wanted for _ in range(step.runs)]
    return rounds if len(rounds) <= runs else [rounds[index * len(rounds) // runs] for index in range(runs)]


def table(title: str, verdicts: list[Verdict]) -> str:
    lines = [
        f"| {title} | runs | jobs run again | records | too many | missing | wrong runs |",
        "|" + "---|" * 7,
    ]
    steps = list(dict.fromkeys(verdict.step for verdict in verdicts))
    for step in sorted(steps, key=lambda each: (STEPS + CONTROL).index(each)):
        of = [verdict for verdict in verdicts if verdict.step == step]
        lines.append(
            f"| {step.name}, {step.workload} | {len(of)} | {sum(each.times - 1 for each in of)} "
            f"| {sum(each.records for each in of)} | {sum(each.doubled for each in of)} "
            f"| {sum(each.missing for each in of)} | {sum(each.cuts for each in of)} "
            f"| {sum(1 for each in of if each.wrong)} |"
        )
    return "\n".join(lines)


async def played(harness: Harness, steps: list[Step], sink: Sink, first: int) -> list[Verdict]:
    verdicts = []
    for number, step in enumerate(steps, first):
        began_s = time.monotonic()
        try:
            verdict = await harness.run(step, number, sink)
        except (AssertionError, RuntimeError, OSError) as error:  # others may show more
            verdict = Verdict(step, number, wrong=[f"{type(error).__name__}: {error}"])
            harness.give_up()
        verdicts.append(verdict)
        print(
            f"{number}: {step.name}, {step.workload}: {verdict.records} records, run {verdict.times} times, "
            f"{verdict.jobs_in_cuts} whole jobs in {verdict.cuts} cuts, "
            f"{time.monotonic() - began_s:.1f} s{'; ' + verdict.wrong[0] if verdict.wrong else ''}",
            flush=True,
        )
    return verdicts


async def play(given: argparse.Namespace, folder: Path) -> int:
    found = ",".join(map(str, jars(given.jars)))
    steps = [] if given.control_only else chosen(STEPS, given.runs, given.only)
    async with (
        LocalCluster(folder / "cluster", 3, SETTINGS) as cluster,
        Harness(folder, cluster, found, is_distributed=True).opened() as harness,
    ):
        ours = await played(harness, steps, OURS, 1)
        control = await played(harness, chosen(CONTROL, given.runs, ""), CONNECTOR, 1001)
        losers = await harness.losers()
    print(table("Tidegate's sink", ours), table("Spark's Kafka connector", control), sep="\n\n")
    wrong = [verdict for verdict in ours if verdict.wrong]
    doubled = sum(verdict.doubled for verdict in control)
    print(
        f"\n{len(ours)} runs, {len(wrong)} wrong; {losers} records of attempts that lost are in the log, and "
        f"no reader saw one; the connector doubled {doubled} records in {len(control)} runs"
    )
    if not doubled:
        print("the control shows no duplicates: its faults are none", file=sys.stderr)
    return 1 if wrong or not doubled else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--runs", type=int, default=sum(step.runs for step in STEPS))
    parser.add_argument("--only", default="", help="steps whose name, workload has this")
    parser.add_argument("--control-only", action="store_true")
    parser.add_argument("--folder", type=Path, help="keeps everything there")
    given = parser.parse_args()
    if given.folder is not None:
        given.folder.mkdir(parents=True)
        return asyncio.run(play(given, given.folder.absolute()))
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play(given, Path(folder)))


if __name__ == "__main__":
    raise SystemExit(main())
