"""`tidegate jobs`: lists and describes job transactions, and aborts those that are open."""

from __future__ import annotations

from typing import Annotated

import typer

from .connecting import LOCAL, Bootstrap, CommandConfig, connect, connect_to_read
from .listing import Json
from .output import CommandError, run, show_json, show_table, when

jobs = typer.Typer(no_args_is_help=True, help="Look at job transactions (Spark), and abort open ones.")
JOB_STATES = ("open", "committed", "aborted")
JobName = Annotated[str, typer.Argument(metavar="SINK/BATCH")]


@jobs.command("list")
def jobs_list(
    state: Annotated[
        list[str], typer.Option("--state", help="Only these: open, committed, aborted; may be repeated.")
    ] = [],  # noqa: B006
    sink: Annotated[str, typer.Option("--sink", help="Only jobs of this sink.")] = "",
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """List jobs: those that are open, and the decided ones that are remembered."""

    async def work() -> None:
        for unknown in [name for name in state if name.lower() not in JOB_STATES]:
            raise ValueError(f"--state {unknown}: choose from {', '.join(JOB_STATES)}")
        async with connect_to_read(bootstrap, command_config) as admin:
            found = await admin.list_jobs([name.lower() for name in state], sink=sink)
        if json:
            show_json(found)
            return
        rows = [
            [
                f"{job.sink}/{job.batch}", job.state, job.attempts, job.winners,
                when(job.deadline_ms if job.state == "open" else -1), when(job.decided_ms),
            ]
            for job in found
        ]  # fmt: skip
        show_table(("job", "state", "attempts", "winners", "deadline", "decided"), rows, empty="no jobs")

    run(work())


@jobs.command("describe")
def jobs_describe(
    job: JobName,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show a job with its attempts."""

    async def work() -> None:
        sink, batch = _named(job)
        async with connect_to_read(bootstrap, command_config) as admin:
            found = await admin.describe_job(sink, batch)
        if json:
            show_json(found)
            return
        rows: list[tuple[str, object]] = [
            ("job", job),
            ("state", found.job.state),
            ("deadline", when(found.job.deadline_ms if found.job.state == "open" else -1)),
            ("decided", when(found.job.decided_ms)),
            ("winners", ", ".join(found.winners) or "-"),
            ("rows", "-" if found.job.rows is None else f"{found.job.rows:,}"),
        ]
        for attempt in found.attempts:
            where = " ".join(
                f"{topic}{sorted(numbers)}" for topic, numbers in sorted(attempt.partitions.items())
            )
            rows.append((f"attempt {attempt.attempt}", f"{attempt.state} {where}"))
        show_table(("", ""), rows)

    run(work())


@jobs.command("abort")
def jobs_abort(
    job: JobName,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
) -> None:
    """Abort an open job with all of its attempts: for one whose driver will not come back.  A job that is
    committed stays so."""

    async def work() -> None:
        sink, batch = _named(job)
        async with connect(bootstrap, command_config) as admin:
            outcome = await admin.abort_job(sink, batch)
        if outcome != "aborted":
            raise CommandError(f"job {job} is not aborted: it is {outcome}")
        print(f"aborted: {job}")

    run(work())


def _named(job: str) -> tuple[str, str]:
    sink, _, batch = job.rpartition("/")
    if not sink or not batch:
        raise ValueError(f"{job!r} names no job: SINK/BATCH is wanted")
    return sink, batch
