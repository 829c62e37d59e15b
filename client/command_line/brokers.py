"""`tidegate brokers` and `features`: draining and unregistering brokers, their settings, feature levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .connecting import LOCAL, Bootstrap, CommandConfig, connect
from .listing import Json
from .output import CommandError, refuse_unknown, run, settings_of, show_json, show_table
from .partitions import until_settled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..administration.admin import Admin
    from .draining import Drain

features = typer.Typer(
    no_args_is_help=True, help="Look at feature levels, raise them after an upgrade of all nodes."
)
brokers = typer.Typer(
    no_args_is_help=True, help="List brokers, change their settings, forget those that are gone for good."
)


# ---- features ----------------------------------------------------------------------------------------------


@features.command("describe")
def features_describe(
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show the finalised feature levels of the cluster, and those that the asked node supports."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
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
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Raise feature levels; without names, all to the highest supported ones.  All nodes must already run the
    new version."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            levels = _levels(feature)
            if not levels:
                levels = {
                    each.name: each.highest
                    for each in await admin.describe_features()
                    if each.highest > each.level
                }
            if levels:
                await admin.update_features(levels, validate_only=dry_run)
        _show_levels(levels, "could be raised" if dry_run else "raised", json)

    run(work())


@features.command("downgrade")
def features_downgrade(
    feature: Levels = [],  # noqa: B006
    dry_run: DryRun = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Lower feature levels where that is safe; 0 turns a feature off."""

    async def work() -> None:
        levels = _levels(feature)
        if not levels:
            raise CommandError(
                "nothing to lower: name a feature, for example --feature transaction.version=1"
            )
        async with connect(bootstrap, command_config) as admin:
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


# ---- brokers -----------------------------------------------------------------------------------------------


@brokers.command("list")
def brokers_list(
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Show every registered broker, fenced ones included."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
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
    changes: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE", help="An empty value: what the broker's file says.")
    ],
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, help="This broker alone, before what is set for all.")
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Change settings of running brokers: of one, or of all, including brokers that register later."""

    async def work() -> None:
        wanted = {key: value or None for key, value in settings_of(changes, "setting").items()}
        taken_back = [key for key, value in wanted.items() if value is None]
        async with connect(bootstrap, command_config) as admin:
            # the controller validates values that are set, but not names that are reset, as in Kafka
            if taken_back:
                alive = [each.node_id for each in await admin.list_brokers() if each.alive]
                refuse_unknown(taken_back, await admin.broker_settings(alive[0]))
            await admin.alter_broker_config(broker, wanted)
            of_all = await admin.broker_settings(None) if broker is not None and taken_back else {}
        if json:
            show_json({"broker": broker, "set": wanted})
        else:
            of = "all brokers" if broker is None else f"broker {broker}"
            print(f"{of}: {', '.join(_as_set(key, value, of_all) for key, value in wanted.items())}")

    run(work())


def _as_set(key: str, value: str | None, of_all: Mapping[str, str | None]) -> str:
    """The value in force for a broker: its own, else that for all brokers, else its file's."""
    if value is not None:
        return f"{key}={value}"
    return f"{key}={of_all[key]}, as for all brokers" if key in of_all else f"{key} as in the file"


@brokers.command("drain")
def brokers_drain(
    broker: Annotated[int, typer.Argument(min=0, help="The broker's node id.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move where.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it holds no replica any more.")] = False,
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Move every replica of a broker to the other brokers, before it is removed.  The broker may be stopped
    already."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            plan = await _plan_of_drain(admin, broker)
            while not dry_run and (plan.targets or plan.leaving):
                if plan.targets:
                    await admin.reassign_partitions(plan.targets)
                if not wait:
                    break
                await until_settled(admin)
                plan = await _plan_of_drain(admin, broker)  # topics may have been created meanwhile
        if json:
            show_json(
                [
                    {"topic": topic, "partition": number, "replicas": to}
                    for (topic, number), to in plan.targets.items()
                ]
            )
        elif dry_run or plan.targets:
            rows = [[topic, number, to] for (topic, number), to in plan.targets.items()]
            show_table(("topic", "partition", "replicas"), rows, empty=_nothing_to_move(broker, plan))
        else:
            print(_nothing_to_move(broker, plan))

    run(work())


def _nothing_to_move(broker: int, plan: Drain) -> str:
    if plan.leaving:
        return (
            f"{plan.leaving} partitions are on their way from broker {broker} already: see `tidegate "
            "partitions reassignments`"
        )
    return f"broker {broker} holds no replica: stop it, then `tidegate brokers unregister {broker}`"


async def _plan_of_drain(admin: Admin, broker: int) -> Drain:
    from .draining import plan_drain

    brokers = {each.node_id: each for each in await admin.list_brokers()}
    if broker not in brokers:
        raise CommandError(
            f"broker {broker} is not registered; there are {', '.join(map(str, sorted(brokers)))}"
        )
    leaving = {(move.topic, move.partition): set(move.removing) for move in await admin.list_reassignments()}
    replicas = {
        (topic.name, number): [
            node for node in view.replicas if node not in leaving.get((topic.name, number), ())
        ]
        for topic in await admin.list_topics(internal=True)
        for number, view in topic.partitions.items()
    }
    plan = plan_drain(broker, {node: each.rack for node, each in brokers.items() if each.alive}, replicas)
    if plan.stuck:
        topic, number = plan.stuck[0]
        raise CommandError(
            f"broker {broker} cannot be drained: no other live broker can take {topic}:{number}"
            + (f" and {len(plan.stuck) - 1} more" if len(plan.stuck) > 1 else "")
            + " without having it twice; add a broker, or give these partitions fewer replicas "
            "(`tidegate partitions reassign`)"
        )
    plan.leaving = sum(broker in nodes for nodes in leaving.values())
    return plan


@brokers.command("unregister")
def brokers_unregister(
    broker: Annotated[int, typer.Argument(min=0, help="The broker's node id.")],
    bootstrap: Bootstrap = LOCAL,
    command_config: CommandConfig = None,
    json: Json = False,
) -> None:
    """Remove the registration of a broker that will not return.  It must be stopped and hold no replica."""

    async def work() -> None:
        async with connect(bootstrap, command_config) as admin:
            await admin.unregister_broker(broker)
        if json:
            show_json({"unregistered": broker})
        else:
            print(f"broker {broker} is forgotten; its id may be used again")

    run(work())
