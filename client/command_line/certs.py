"""`tidegate certs`: an authority of one's own, what it signs, and until when certificates hold; and
`tidegate users hash`, for the first users of a cluster.

    certs/ca.pem, ca.key        the authority; `ca.pem` is what nodes and clients trust
    certs/node-<id>.pem         a node's certificate with its key
    certs/client-<user>.pem     a client's certificate with its key
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import CommandError, run, show_json, show_table

if TYPE_CHECKING:
    from ...processes.cluster_certificates import ClusterCertificates

certs = typer.Typer(no_args_is_help=True, help="Make certificates, and see until when they hold.")
users = typer.Typer(no_args_is_help=True, help="The first users of a new cluster.")

Folder = Annotated[Path, typer.Option("--folder", help="The folder of the authority and the certificates.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
FOLDER = Path("certs")
USER = re.compile(r"[\w.@-]{1,100}")


def _certificates(folder: Path) -> ClusterCertificates:
    from ...processes.cluster_certificates import ClusterCertificates
    from ...runtime.clock import SystemClock

    return ClusterCertificates(folder, SystemClock())


def _existing(folder: Path) -> ClusterCertificates:
    found = _certificates(folder)
    if not found.exists:
        raise CommandError(f"no authority in {folder}: make one with `tidegate certs authority`")
    return found


@certs.command("authority")
def certs_authority(
    folder: Folder = FOLDER,
    renew: Annotated[
        bool, typer.Option("--renew", help="A new one, which signs from now on; both are trusted.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget-former", help="Trust the newest one alone, at the end of a rotation.")
    ] = False,
) -> None:
    """Make an authority, or replace one: --renew, new certificates for all, --forget-former."""

    async def work() -> None:
        found = _certificates(folder)
        if renew and forget:
            raise CommandError("--forget-former comes after every certificate was made anew")
        if forget:
            _existing(folder).forget_former_authorities()
        elif found.exists and not renew:
            raise CommandError(f"{folder} has an authority: --renew makes another one")
        else:
            found.renew_authority()
        print(f"{found.authorities}: nodes and clients trust it")

    run(work())


@certs.command("node")
def certs_node(
    node_id: Annotated[int, typer.Argument(min=0, help="The node's node.id.")],
    host: Annotated[
        list[str], typer.Option("--host", help="A name or address at which others reach it; may be repeated.")
    ],
    folder: Folder = FOLDER,
) -> None:
    """Make (again) a node's certificate, with its key."""

    async def work() -> None:
        found = _existing(folder)
        found.renew(node_id, host)
        print(f"{found.of_node(node_id)}: ssl.keystore.location of node {node_id}")

    run(work())


@certs.command("client")
def certs_client(
    user: Annotated[str, typer.Argument(help="The user: the principal is User:CN=<user>.")],
    folder: Folder = FOLDER,
) -> None:
    """Make (again) a client's certificate, with its key."""

    async def work() -> None:
        if USER.fullmatch(user) is None:
            raise CommandError(f"{user!r}: a user's name has letters, digits, and . _ - @")
        found = _existing(folder)
        found.renew_client(user)
        print(f"{found.of_client(user)}: ssl.keystore.location of this client")

    run(work())


@certs.command("show")
def certs_show(files: Annotated[list[Path], typer.Argument(help="PEM files.")], json: Json = False) -> None:
    """Show what certificates name, and when they end; the exit code is 1 when one does not hold now."""

    async def work() -> bool:
        from ...runtime.clock import SystemClock
        from ...security.certificates import CertificateError, describe

        now_ms = SystemClock().wall_ms()
        rows = []
        for file in files:
            try:
                with file.open("rb") as opened:
                    described = describe(opened.read())
            except CertificateError as error:
                raise CommandError(f"{file}: {error}") from error
            rows += [(file, each) for each in described]
        if json:
            show_json(
                [
                    {"file": str(file), "left_days": each.left_days(now_ms), **each.shown}
                    for file, each in rows
                ]
            )
        else:
            show_table(
                ("file", "subject", "names", "issuer", "until", "days left"),
                [
                    [str(file), each.subject, each.names, each.issuer, f"{each.not_after:%Y-%m-%d}",
                     each.left_days(now_ms)]
                    for file, each in rows
                ],
            )  # fmt: skip
        return all(each.holds(now_ms) for _, each in rows)

    if not run(work()):
        raise typer.Exit(1)


@users.command("hash")
def users_hash(name: Annotated[str, typer.Argument(help="The user's name.")]) -> None:
    """Print what proves a password, for bootstrap.scram.credentials; the password is asked for, or is the
    first line of standard input."""

    async def work() -> None:
        import secrets

        from ...security.first_users import FirstUser
        from ...security.scram import SALT_BYTES

        if USER.fullmatch(name) is None:
            raise CommandError(f"{name!r}: a user's name has letters, digits, and . _ - @")
        print(FirstUser.with_password(name, password, secrets.token_bytes(SALT_BYTES)))

    password = _asked_password()
    run(work())


def _asked_password() -> str:
    import getpass
    import sys

    if sys.stdin.isatty():
        first, second = getpass.getpass("password: "), getpass.getpass("again: ")
        if first != second:
            raise typer.BadParameter("the two passwords differ")
    else:
        first = sys.stdin.readline().rstrip("\r\n")
    if not first:
        raise typer.BadParameter("the password is empty")
    return first
