"""The `tidegate` command: try a node, run a cluster on this machine, look at topics, groups and transactions,
move records.

Packages above the client add commands (`chaos`, `demo`) by the entry-point group `tidegate.commands`: name ->
typer app or function.  The program imports them only when the user calls them, so that `tidegate --help` is
fast.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final

import typer

from ... import __version__
from .brokers import brokers, features
from .certs import certs, users
from .cluster import cluster, dev
from .cuts import cuts
from .jobs import jobs
from .listing import groups, status, topics
from .output import complain
from .partitions import partitions
from .records import consume, produce
from .reset_offsets import groups_reset_offsets
from .transactions import txns

ENTRY_POINT_GROUP: Final = "tidegate.commands"
SUMMARIES: Final = {
    "chaos": "Hurt a cluster on this machine on purpose and check what its clients saw.",
    "count": "Count committed records, from indexes: no data is read.",
    "demo": "Run the main job on three nodes, with two kills, and check every record.",
    "log": "Look into data folders: what logs hold, and whether they are sound.",
}
"""Of commands that are not imported before they are called; a test compares them with the commands' own."""
# all mistakes in arguments; typer has no public name for it
_USAGE_ERROR: Final[Any] = typer.BadParameter.__base__


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tidegate {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
]


def _root(version: Version = False) -> None:
    """A distributed, transactional log broker that Kafka clients talk to unmodified."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """The command tree; of the entry points, only the one named in `arguments` is imported."""
    app = typer.Typer(
        no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    app.callback()(_root)
    app.command(short_help="Run one node until Ctrl-C, to try things.")(dev)
    app.add_typer(cluster, name="cluster")
    app.command(short_help="Show the cluster and what is wrong with it.")(status)
    app.add_typer(topics, name="topics")
    app.command(short_help="Write records.")(produce)
    app.command(short_help="Read records, one line each.")(consume)
    groups.command("reset-offsets")(groups_reset_offsets)
    app.add_typer(groups, name="groups")
    app.add_typer(txns, name="txns")
    app.add_typer(jobs, name="jobs")
    app.add_typer(cuts, name="cuts")
    app.add_typer(partitions, name="partitions")
    app.add_typer(brokers, name="brokers")
    app.add_typer(features, name="features")
    app.add_typer(certs, name="certs")
    app.add_typer(users, name="users")
    called = next((argument for argument in arguments if not argument.startswith("-")), None)
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        _join(app, entry, load=entry.name == called)
    return app


def _join(app: typer.Typer, entry: EntryPoint, *, load: bool) -> None:
    if load:
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=entry.name)
        else:
            app.command(entry.name)(loaded)
        return

    def stand_in() -> None:
        raise AssertionError(f"{entry.name} was not loaded")  # `build` loads the called command

    app.command(entry.name, help=SUMMARIES.get(entry.name, f"See `tidegate {entry.name} --help`."))(stand_in)


def main() -> None:
    """The console script."""
    try:
        app = build(sys.argv[1:])
    except ImportError as error:
        complain(
            f"the command cannot be loaded: {error}: is everything installed? (pip install 'tidegate[demo]')"
        )
        raise SystemExit(1) from error
    raise SystemExit(call(app, sys.argv[1:]))


def _in_words(message: str) -> str:
    """The argument parser's message about numbers, in the words of this command line."""
    message = re.sub(r"Input should be a valid integer.*", "a whole number is wanted", message)
    message = re.sub(r"Input should be a valid number.*", "a number is wanted", message)
    message = re.sub(
        r"Input should be greater than or equal to (\S+)", r"a number from \1 on is wanted", message
    )
    return re.sub(r"Input should be less than or equal to (\S+)", r"a number up to \1 is wanted", message)


def call(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Runs the command that `arguments` name and returns its exit code.  A usage error prints one line, with
    exit code 2."""
    try:
        done = typer.main.get_command(app).main(list(arguments), prog_name="tidegate", standalone_mode=False)
    except typer.Abort:
        return 130
    except _USAGE_ERROR as error:
        message, context = error.format_message().rstrip("."), error.ctx
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())  # a group of commands without a command: its help
        else:
            called = " ".join(["tidegate", *itertools.takewhile(lambda word: word.isalpha(), arguments[:1])])
            command = context.command_path if context is not None else called
            complain(f"{_in_words(message[:1].lower() + message[1:])} (see `{command} --help`)")
        return int(error.exit_code)
    return done if isinstance(done, int) else 0
