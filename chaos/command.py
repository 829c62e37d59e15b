"""`tidegate chaos`: inject faults into a cluster of real processes on this machine and check its clients'
history."""

from __future__ import annotations

import json as json_module
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from .run.outcome import RunOutcome
    from .sim.runs import RunsReport

ALL = "all"
SEED_BITS = 32

app = typer.Typer(
    no_args_is_help=True, help="Hurt a cluster on this machine on purpose and check what its clients saw."
)

simulated = typer.Typer(
    no_args_is_help=True, help="Histories in a simulator, repeated exactly by their seeds."
)
app.add_typer(simulated, name="sim")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seeds = Annotated[int, typer.Option(help="Histories to run.", min=1)]
First = Annotated[int, typer.Option(help="The first seed.")]
TransactionVersion = Annotated[
    int, typer.Option(help="transaction.version of the producers: 1 or 2.", min=1, max=2)
]


@app.command("list")
def list_scenarios(json: Json = False) -> None:
    """Show the scenarios."""
    from ..client.command_line.output import show_json, show_table
    from .scenarios.table import SCENARIOS

    if json:
        show_json([{"name": scenario.name, "summary": scenario.summary} for scenario in SCENARIOS.values()])
    else:
        show_table(
            ("scenario", "what happens"),
            [(scenario.name, scenario.summary) for scenario in SCENARIOS.values()],
        )


@app.command("run")
def run_scenarios(
    name: Annotated[str, typer.Argument(help="A scenario's name, or 'all'.")] = ALL,
    seconds: Annotated[float, typer.Option(help="Load per scenario, in seconds.", min=1.0)] = 20.0,
    seed: Annotated[
        int | None, typer.Option(help="What the workload chooses; default: a new one, which is printed.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster, every partition on each: 3 or 5.")] = 3,
    secured: Annotated[
        bool,
        typer.Option(
            "--secured", help="Mutual TLS between nodes; clients log in over TLS and have few rights (ACLs)."
        ),
    ] = False,
    directory: Annotated[Path, typer.Option(help="Where histories, reports and the nodes' logs go.")] = Path(
        "tidegate-chaos"
    ),
    json: Json = False,
) -> None:
    """Run scenarios, one after the other.  Exit code 1 when a check fails."""
    from ..client.command_line.output import complain, run
    from .scenarios.table import SCENARIOS

    names = list(SCENARIOS) if name == ALL else [name]
    if name != ALL and name not in SCENARIOS:
        complain(f"no scenario is called {name!r}: choose {', '.join(SCENARIOS)}, or {ALL}")
        raise typer.Exit(1)
    if nodes not in (3, 5):
        raise typer.BadParameter("a cluster to be hurt has 3 or 5 nodes", param_hint="--nodes")
    chosen = secrets.randbits(SEED_BITS) if seed is None else seed
    outcomes = run(_run_all(names, seconds, chosen, nodes, directory, secured=secured, quiet=json))
    if json:
        print(json_module.dumps([outcome.document() for outcome in outcomes], ensure_ascii=False))
    failed = [outcome.scenario for outcome in outcomes if not outcome.passed]
    if failed:
        options = f"--nodes {nodes} --seed {chosen}{' --secured' if secured else ''}"
        complain(f"{', '.join(failed)} failed: see {directory}, and repeat with {options}")
        raise typer.Exit(1)


@simulated.command("storage")
def simulate_storage(
    seeds: Seeds = 10_000,
    first: First = 0,
    length: Annotated[int, typer.Option(help="Steps of each history.", min=1)] = 14,
    kind: Annotated[
        str,
        typer.Option(
            help="log: of one log; truncations: cut again and again; folders: of several; rot: of flipped "
            "bits."
        ),
    ] = "log",
    json: Json = False,
) -> None:
    """Random histories of logs on faulty disks, compared with a model.  Exit code 1 when a promise does not
    hold."""
    from ..client.command_line.output import complain
    from .sim.runs import run_seeds
    from .sim.storage.kinds import KINDS, history_of

    if kind not in KINDS:
        complain(f"no histories are called {kind!r}: choose {', '.join(KINDS)}")
        raise typer.Exit(1)
    _show_runs(
        run_seeds(first, seeds, history_of(kind, length)), f"storage --kind {kind} --length {length}", json
    )


@simulated.command("quorum")
def simulate_quorum(
    seeds: Seeds = 1000,
    first: First = 0,
    voters: Annotated[
        int, typer.Option(help="Members of the quorum: 1, 3 or 5; 0: as each seed draws it.")
    ] = 0,
    seconds: Annotated[
        float, typer.Option(help="Simulated time with faults, of each history.", min=1.0)
    ] = 6.0,
    json: Json = False,
) -> None:
    """Histories of the metadata quorum under crashes, cuts and failing disks.  Exit code 1 when a promise
    does not hold."""
    from .sim.quorum.options import QuorumOptions
    from .sim.quorum.simulation import QuorumSimulation
    from .sim.runs import run_seeds

    if voters not in (0, 1, 3, 5):
        raise typer.BadParameter("a quorum has 1, 3 or 5 voters", param_hint="--voters")
    report = run_seeds(
        first, seeds, lambda seed: QuorumSimulation(QuorumOptions.draw(seed, voters, seconds)).run()
    )
    _show_runs(report, f"quorum --voters {voters} --seconds {seconds:g}", json)


@simulated.command("replication")
def simulate_replication(
    seeds: Seeds = 1000,
    first: First = 0,
    json: Json = False,
) -> None:
    """Clusters of one to five brokers in virtual time, under every kind of fault.  Exit code 1 when a promise
    does not hold."""
    from .sim.replication.history import History
    from .sim.runs import run_seeds

    def history(seed: int) -> dict[str, int]:
        cluster = History(seed)
        cluster.run()
        return cluster.counts()

    _show_runs(run_seeds(first, seeds, history), "replication", json)


@simulated.command("transactions")
def simulate_transactions(
    seeds: Seeds = 1000,
    first: First = 0,
    version: TransactionVersion = 2,
    json: Json = False,
) -> None:
    """Transactions, and jobs of many producers, under faults of coordinators, leaders, network, producers and
    drivers.  Exit code 1 when a promise does not hold."""
    from .sim.runs import run_seeds
    from .sim.transactions.faults import TV1, Faults
    from .sim.transactions.world import run_history

    faults = Faults(jobs=True) if version == 2 else TV1
    report = run_seeds(first, seeds, lambda seed: run_history(seed, faults))
    _show_runs(report, f"transactions --version {version}", json)


@simulated.command("cuts")
def simulate_cuts(
    seeds: Seeds = 1000,
    first: First = 0,
    version: TransactionVersion = 2,
    json: Json = False,
) -> None:
    """Transaction-consistent cuts beside transactions and jobs, under faults of coordinators, leaders and
    network.  Exit code 1 when a promise does not hold."""
    from .sim.runs import run_seeds
    from .sim.transactions.faults import CUTS, CUTS_TV1
    from .sim.transactions.world import run_history

    faults = CUTS if version == 2 else CUTS_TV1
    report = run_seeds(first, seeds, lambda seed: run_history(seed, faults, steps=400))
    _show_runs(report, f"cuts --version {version}", json)


@app.command("check")
def check_again(
    directory: Annotated[
        Path, typer.Argument(help="The folder of a run, with history.jsonl and final.json.")
    ],
    json: Json = False,
) -> None:
    """Check the history of a former run again.  Exit code 1 when it has an anomaly."""
    from ..client.command_line.output import complain, show_json
    from .checks import archive
    from .checks.checker import check
    from .checks.history import HistoryError

    try:
        run = archive.read(directory)
        report = check(run.history, run.logs, run.offsets, tolerated_cycles=True)
    except HistoryError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if json:
        show_json(
            {
                "valid": report.valid,
                "anomalies": [str(anomaly) for anomaly in report.anomalies],
                "counts": report.counts,
            }
        )
    else:
        print(report.describe())
    if not report.valid:
        raise typer.Exit(1)


def _show_runs(report: RunsReport, simulator: str, json: bool) -> None:
    """Prints what a run of seeds found, and how to repeat the first history that is broken."""
    from ..client.command_line.output import complain, show_json

    if json:
        show_json(report.document())
    else:
        print(report.describe())
    if report.broken:
        complain(f"repeat one with: tidegate chaos sim {simulator} --seeds 1 --first {report.broken[0][0]}")
        raise typer.Exit(1)


async def _run_all(
    names: list[str],
    seconds: float,
    seed: int,
    nodes: int,
    directory: Path,
    *,
    secured: bool,
    quiet: bool,
) -> list[RunOutcome]:
    from .run.harness import run_scenario
    from .scenarios.table import SCENARIOS

    outcomes: list[RunOutcome] = []
    for name in names:
        folder = _fresh(directory / f"{name}-{nodes}-{seed}{'-secured' if secured else ''}")
        say = (lambda _: None) if quiet else _say
        outcome = await run_scenario(
            SCENARIOS[name], folder, seconds, seed, nodes=nodes, say=say, secured=secured
        )
        outcomes.append(outcome)
        if not quiet:
            print(outcome.table())
            print(f"  history, report and logs: {folder}\n", flush=True)
    return outcomes


def _say(sentence: str) -> None:
    print(f"... {sentence}", file=sys.stderr, flush=True)


def _fresh(folder: Path) -> Path:
    """`folder`, or the first of folder-2, folder-3, ... that does not exist: an old cluster is never
    continued."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate
