"""`tidegate partitions`, `features` and `brokers`: moving data, electing leaders, upgrading a cluster, taking brokers away."""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .command_output import CommandError, run, settings_of, show_json, show_table, warn
from .fewer_replicas import in_words, reductions
from .listing_commands import LOCAL, Bootstrap, Json, connect

if TYPE_CHECKING:
    from .admin import Admin
    from .draining import Drain
    from .operations import PartitionMove

partitions = typer.Typer(no_args_is_help=True, help="Move partitions to other brokers, elect leaders.")
features = typer.Typer(no_args_is_help=True, help="Look at feature levels, raise them after an upgrade of all nodes.")
brokers = typer.Typer(no_args_is_help=True, help="List brokers, change their settings, forget those that are gone for good.")

WATCH_S = 0.5
Wait = Annotated[bool, typer.Option("--wait", help="Return when no partition moves any more.")]


# ---------------------------------------------------------------------- partitions


@partitions.command("reassign")
def partitions_reassign(
    targets: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION=BROKER,BROKER,...")] = [],  # noqa: B006
    file: Annotated[
        Path | None, typer.Option("--file", help='As kafka-reassign-partitions has it: {"partitions": [{"topic", ...}]}.')
    ] = None,
    allow_fewer_replicas: Annotated[
        bool, typer.Option("--allow-fewer-replicas", help="Fewer brokers than now are meant, for every partition named.")
    ] = False,
    wait: Wait = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Begin to move partitions; the first broker becomes the preferred leader.  Asking again for another target is fine."""

    async def work() -> None:
        wanted = dict(_target(text) for text in targets) | (_targets_of(file) if file is not None else {})
        if not wanted:
            raise CommandError("nothing to move: name partitions as TOPIC:PARTITION=BROKER,BROKER, or give --file")
        async with connect(bootstrap) as admin:
            topics = await admin.describe_topics(sorted({topic for topic, _ in wanted}))
            fewer = reductions(topics, await admin.list_reassignments(), wanted)
            if fewer and not allow_fewer_replicas:
                raise CommandError(f"{in_words(fewer)}. Nothing was moved: if that is meant, say --allow-fewer-replicas")
            below = [each for each in fewer if each.after < each.min_in_sync]
            if below:
                warn(in_words(below))
            await admin.reassign_partitions(wanted)
            if wait:
                await _until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty=f"{len(wanted)} partitions are where they should be")

    run(work())


@partitions.command("elect")
def partitions_elect(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION")],
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Of a partition without a leader: whoever is left, where that is allowed."),
    ] = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Elect leaders: the preferred replicas; or, of partitions that nobody can lead any more, whoever is left."""

    async def work() -> None:
        chosen = [_partition(name) for name in names]
        async with connect(bootstrap) as admin:
            await admin.elect_leaders(chosen, unclean=unclean)
            described = await admin.describe_topics(sorted({topic for topic, _ in chosen}), config=False)
        leaders = {(topic.name, part.partition): part.leader for topic in described for part in topic.partitions}
        rows = [[topic, number, leaders.get((topic, number), -1)] for topic, number in chosen]
        columns = ("topic", "partition", "leader")
        if json:
            show_json([dict(zip(columns, row, strict=True)) for row in rows])
        else:
            show_table(columns, rows)

    run(work())


@partitions.command("cancel")
def partitions_cancel(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION", help="All that move when none is named.")] = [],  # noqa: B006
    wait: Wait = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """End moves: the partitions go back to the brokers they were on."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            chosen = [_partition(name) for name in names] or [(m.topic, m.partition) for m in await admin.list_reassignments()]
            await admin.reassign_partitions(dict.fromkeys(chosen))
            if wait:
                await _until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty=f"{len(chosen)} moves were ended")

    run(work())


@partitions.command("reassignments")
def partitions_reassignments(wait: Wait = False, bootstrap: Bootstrap = LOCAL, json: Json = False) -> None:
    """Show the partitions that move, and how much of them was copied."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            if wait:
                await _until_settled(admin)
            moves = await admin.list_reassignments()
        _show_moves(moves, json, empty="no partition moves")

    run(work())


async def _until_settled(admin: Admin) -> None:
    while await admin.list_reassignments():
        await asyncio.sleep(WATCH_S)


def _show_moves(moves: Sequence[PartitionMove], json: bool, *, empty: str) -> None:
    if json:
        show_json(moves)
        return
    rows = [[move.topic, move.partition, move.replicas, move.adding, move.removing, _progress(move)] for move in moves]
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
    from ..runtime.disk import RealDisk

    try:
        plan: Any = json_format.loads(RealDisk().read(file))
        return {
            (str(entry["topic"]), int(entry["partition"])): [int(node) for node in entry["replicas"]]
            for entry in plan["partitions"]
        }
    except (ValueError, KeyError, TypeError) as error:
        wanted = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'
        raise CommandError(f"{file}: {error!r}; it should look like {wanted}") from error


# ---------------------------------------------------------------------- features


@features.command("describe")
def features_describe(bootstrap: Bootstrap = LOCAL, json: Json = False) -> None:
    """Show the levels that the cluster has agreed on, and those that the node asked knows."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            found = await admin.describe_features()
        if json:
            show_json(found)
            return
        rows = [[each.name, each.level, f"{each.lowest} to {each.highest}"] for each in found]
        show_table(("feature", "level", "known"), rows)

    run(work())


Levels = Annotated[list[str], typer.Option("--feature", metavar="NAME=LEVEL", help="May be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be done.")]


@features.command("upgrade")
def features_upgrade(
    feature: Levels = [],  # noqa: B006
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Raise feature levels, to the highest known ones when none is named.  All nodes must run the new version before."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            levels = _levels(feature)
            if not levels:
                levels = {each.name: each.highest for each in await admin.describe_features() if each.highest > each.level}
            if levels:
                await admin.update_features(levels, validate_only=dry_run)
        _show_levels(levels, "could be raised" if dry_run else "raised", json)

    run(work())


@features.command("downgrade")
def features_downgrade(
    feature: Levels = [],  # noqa: B006
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Lower feature levels where that is safe; 0 turns a feature off."""

    async def work() -> None:
        levels = _levels(feature)
        if not levels:
            raise CommandError("nothing to lower: name a feature, for example --feature transaction.version=1")
        async with connect(bootstrap) as admin:
            await admin.update_features(levels, downgrade=True, validate_only=dry_run)
        _show_levels(levels, "could be lowered" if dry_run else "lowered", json)

    run(work())


def _levels(pairs: list[str]) -> dict[str, int]:
    found = settings_of(pairs, "--feature")
    wrong = [name for name, level in found.items() if not level.isdigit()]
    if wrong:
        raise CommandError(f"--feature {wrong[0]}={found[wrong[0]]}: the level is a whole number")
    return {name: int(level) for name, level in found.items()}


def _show_levels(levels: dict[str, int], done: str, json: bool) -> None:
    if json:
        show_json(levels)
    elif levels:
        print(f"{done}: {', '.join(f'{name}={level}' for name, level in sorted(levels.items()))}")
    else:
        print("every feature is at the highest level that this version knows")


# ---------------------------------------------------------------------- brokers


@brokers.command("list")
def brokers_list(bootstrap: Bootstrap = LOCAL, json: Json = False) -> None:
    """Show every registered broker, those that are away as well."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            found = await admin.list_brokers()
            views = await admin.list_topics(internal=True)
        parts = [part for view in views for part in view.partitions.values()]
        rows = [
            {
                "broker": broker.node_id,
                "address": broker.address,
                "rack": broker.rack,
                "alive": broker.alive,
                "leads": sum(part.leader == broker.node_id for part in parts),
                "replicas": sum(broker.node_id in part.replicas for part in parts),
            }
            for broker in found
        ]
        if json:
            show_json(rows)
        else:
            columns = ("broker", "address", "rack", "alive", "leads", "replicas")
            show_table(columns, [[row[column] for column in columns] for row in rows])

    run(work())


@brokers.command("set")
def brokers_set(
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="An empty value: what the broker's file says.")],
    broker: Annotated[int | None, typer.Option("--broker", min=0, help="This broker alone, before what is set for all.")] = None,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Change settings while brokers run: of all of them, or of one.  They hold for brokers that come later, too."""

    async def work() -> None:
        wanted = {key: value or None for key, value in settings_of(changes, "setting").items()}
        async with connect(bootstrap) as admin:
            await admin.alter_broker_config(broker, wanted)
        if json:
            show_json({"broker": broker, "set": wanted})
        else:
            of = "all brokers" if broker is None else f"broker {broker}"
            print(f"{of}: {', '.join(f'{key}={value}' if value else f'{key} as in the file' for key, value in wanted.items())}")

    run(work())


@brokers.command("drain")
def brokers_drain(
    broker: Annotated[int, typer.Argument(min=0, help="The broker's node id.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move where.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it holds no replica any more.")] = False,
    bootstrap: Bootstrap = LOCAL,
    json: Json = False,
) -> None:
    """Move every replica of a broker to the others, to take it away.  The broker may be stopped already."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            plan = await _plan_of_drain(admin, broker)
            while not dry_run and plan.targets:
                await admin.reassign_partitions(plan.targets)
                if not wait:
                    break
                await _until_settled(admin)
                plan = await _plan_of_drain(admin, broker)  # topics may have been made meanwhile
        if json:
            show_json([{"topic": topic, "partition": number, "replicas": to} for (topic, number), to in plan.targets.items()])
        elif dry_run or plan.targets:
            rows = [[topic, number, to] for (topic, number), to in plan.targets.items()]
            show_table(("topic", "partition", "replicas"), rows, empty=f"broker {broker} holds no replica")
        else:
            print(f"broker {broker} holds no replica: stop it, then `tidegate brokers unregister {broker}`")

    run(work())


async def _plan_of_drain(admin: Admin, broker: int) -> Drain:
    from .draining import plan_drain

    brokers = {each.node_id: each for each in await admin.list_brokers()}
    if broker not in brokers:
        raise CommandError(f"broker {broker} is not registered; there are {', '.join(map(str, sorted(brokers)))}")
    leaving = {(move.topic, move.partition): set(move.removing) for move in await admin.list_reassignments()}
    replicas = {
        (topic.name, number): [node for node in view.replicas if node not in leaving.get((topic.name, number), ())]
        for topic in await admin.list_topics(internal=True)
        for number, view in topic.partitions.items()
    }
    plan = plan_drain(broker, {node: each.rack for node, each in brokers.items() if each.alive}, replicas)
    if plan.stuck:
        topic, number = plan.stuck[0]
        raise CommandError(
            f"broker {broker} cannot be drained: no other live broker can take {topic}:{number}"
            + (f" and {len(plan.stuck) - 1} more" if len(plan.stuck) > 1 else "")
            + " without having it twice; add a broker, or give these partitions fewer replicas (`tidegate partitions reassign`)"
        )
    return plan


@brokers.command("unregister")
def brokers_unregister(
    broker: Annotated[int, typer.Argument(min=0, help="The broker's node id.")], bootstrap: Bootstrap = LOCAL, json: Json = False
) -> None:
    """Forget a broker that will not come back.  It must be stopped, and hold no replica."""

    async def work() -> None:
        async with connect(bootstrap) as admin:
            await admin.unregister_broker(broker)
        if json:
            show_json({"unregistered": broker})
        else:
            print(f"broker {broker} is forgotten; its id may be used again")

    run(work())
