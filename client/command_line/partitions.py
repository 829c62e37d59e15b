"""`tidegate partitions`: moving data, electing leaders."""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .connecting import LOCAL, Bootstrap, CommandConfig, connect
from .fewer_replicas import in_words, reductions
from .listing import Json
from .output import CommandError, run, show_json, show_table, warn

if TYPE_CHECKING:
    from ..administration.admin import Admin
    from ..administration.descriptions import TopicDescription
    from ..administration.operations import PartitionMove

partitions = typer.Typer(no_args_is_help=True, help="Move partitions to other brokers, elect leaders.")

WATCH_S = 0.5
Wait = Annotated[bool, typer.Option("--wait", help="Return when no partition moves any more.")]


@partitions.command("reassign")
def partitions_reassign(
    targets: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION=BROKER,BROKER,...")] = [],  # noqa: B006
    file: Annotated[
        Path | None,
        typer.Option("--file", help='As kafka-reassign-partitions has it: {"partitions": [{"topic", ...}]}.'),
    ] = None,
    allow_fewer_replicas: Annotated[
        bool,
        typer.Option(
            "--allow-fewer-replicas", help="Fewer brokers than now are meant, for every partition named."
        ),
    ] = False,
    wait: Wait = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Begin to move partitions; the first broker becomes the preferred leader.  A new target replaces a
    running move."""

    async def work() -> None:
        wanted = dict(_target(text) for text in targets) | (_targets_of(file) if file is not None else {})
        if not wanted:
            raise CommandError(
                "nothing to move: name partitions as TOPIC:PARTITION=BROKER,BROKER, or give --file"
            )
        async with connect(bootstrap, command_config) as admin:
            topics = await admin.describe_topics(sorted({topic for topic, _ in wanted}))
            _require_partitions(topics, wanted)
            fewer = reductions(topics, await admin.list_reassignments(), wanted)
            if fewer and not allow_fewer_replicas:
                raise CommandError(
                    f"{in_words(fewer)}. Nothing was moved: if that is meant, say --allow-fewer-replicas"
                )
            below = [each for each in fewer if each.after < each.min_in_sync]
            if below:
                warn(in_words(below))
            await admin.reassign_partitions(wanted)
            if wait:
                await until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty=f"{len(wanted)} partitions are where they should be")

    run(work())


@partitions.command("elect")
def partitions_elect(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION")],
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="For a partition without a leader: elect any live replica, where the topic allows it.",
        ),
    ] = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Elect the preferred replicas; or, with --unclean, any live replica of partitions without an eligible
    leader."""

    async def work() -> None:
        chosen = [_partition(name) for name in names]
        async with connect(bootstrap, command_config) as admin:
            names_of_topics = sorted({topic for topic, _ in chosen})
            _require_partitions(await admin.describe_topics(names_of_topics, config=False), chosen)
            await admin.elect_leaders(chosen, unclean=unclean)
            described = await admin.describe_topics(names_of_topics, config=False)
        leaders = {
            (topic.name, part.partition): part.leader for topic in described for part in topic.partitions
        }
        rows = [[topic, number, leaders.get((topic, number), -1)] for topic, number in chosen]
        columns = ("topic", "partition", "leader")
        if json:
            show_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            show_table(columns, rows)

    run(work())


@partitions.command("cancel")
def partitions_cancel(
    names: Annotated[
        list[str], typer.Argument(metavar="TOPIC:PARTITION", help="All that move when none is named.")
    ] = [],  # noqa: B006
    wait: Wait = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Cancel moves: the partitions return to their former brokers."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            chosen = [_partition(name) for name in names] or [
                (m.topic, m.partition) for m in await admin.list_reassignments()
            ]
            await admin.reassign_partitions(dict.fromkeys(chosen))
            if wait:
                await until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty=f"{len(chosen)} moves were ended")

    run(work())


@partitions.command("reassignments")
def partitions_reassignments(
    wait: Wait = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show the moving partitions, and how many of their bytes are copied."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            if wait:
                await until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty="no partition moves")

    run(work())


async def until_settled(admin: Admin) -> None:
    while await admin.list_reassignments():  # noqa: ASYNC110 the cluster announces no end of one
        await asyncio.sleep(WATCH_S)


def _require_partitions(topics: Sequence[TopicDescription], wanted: Iterable[tuple[str, int]]) -> None:
    there = {topic.name: {part.partition for part in topic.partitions} for topic in topics}
    for topic, number in wanted:
        if number not in there[topic]:
            raise CommandError(
                f"topic {topic!r} has no partition {number}: it has {len(there[topic])}, from 0 on"
            )


def _show_moves(moves: Sequence[PartitionMove], json: bool, *, empty: str) -> None:
    if json:
        show_json(moves)
        return
    rows = [
        [move.topic, move.partition, move.replicas, move.adding, move.removing, _progress(move)]
        for move in moves
    ]
    show_table(("topic", "partition", "replicas", "adding", "removing", "copied"), rows, empty=empty)


def _progress(move: PartitionMove) -> str:
    if move.copied_bytes is None or move.leader_bytes is None:
        return "-"
    share = min(100, 100 * move.copied_bytes // move.leader_bytes) if move.leader_bytes else 100
    return f"{share} % of {move.leader_bytes} bytes"


def _target(text: str) -> tuple[tuple[str, int], list[int]]:
    name, separator, nodes = text.partition("=")
    parts = [part.strip() for part in nodes.split(",")]
    if not separator or not all(part.isdigit() for part in parts):
        raise CommandError(f"{text}: write it as TOPIC:PARTITION=BROKER,BROKER, for example orders:0=1,2,3")
    return _partition(name), [int(part) for part in parts]


def _partition(text: str) -> tuple[str, int]:
    topic, separator, number = text.rpartition(":")
    if not separator or not number.strip().isdigit():
        raise CommandError(f"{text}: write it as TOPIC:PARTITION, for example orders:0")
    return topic.strip(), int(number)


def _targets_of(file: Path) -> dict[tuple[str, int], list[int]]:
    from ...runtime.disk import RealDisk

    try:
        plan: Any = json_format.loads(RealDisk().read(file))
        return {
            (str(entry["topic"]), int(entry["partition"])): [int(node) for node in entry["replicas"]]
            for entry in plan["partitions"]
        }
    except (ValueError, KeyError, TypeError) as error:
        wanted = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'
        raise CommandError(f"{file}: {error!r}; it should look like {wanted}") from error
