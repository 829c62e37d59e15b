"""How the commands reach a cluster: `--bootstrap`, and `--command-config` with the properties of Kafka's
tools (`security.protocol`, `sasl.jaas.config`, `ssl.truststore.location`, ...).

A password stands in that file alone: no option takes one, since options show in lists of processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import CommandError, warn

if TYPE_CHECKING:
    from ...security.client_security import ClientSecurity
    from ..administration.admin import Admin

LOCAL = "127.0.0.1:9092"
READ_S_MAX = 10.0
"""How long a command that only looks may take; where leaders or coordinators are away for longer, it says
so."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", envvar="TIDEGATE_BOOTSTRAP", help="Brokers as host:port,host:port.", show_envvar=True
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="TIDEGATE_COMMAND_CONFIG",
        metavar="FILE",
        help="Properties as of Kafka's tools: security.protocol, sasl.jaas.config, ...",
        show_envvar=True,
    ),
]


class Connection:
    """Where the brokers are, and how a command proves its identity.  Raises CommandError for a file that
    cannot be used."""

    def __init__(self, bootstrap: str, command_config: Path | None) -> None:
        self.bootstrap = bootstrap
        self.security: ClientSecurity | None = None
        if command_config is None:
            return
        from ...runtime.connections.tls import TlsError
        from ...security.client_security import SecurityError, read_security

        try:
            self.security, values, unknown = read_security(command_config)
        except (SecurityError, TlsError) as error:
            raise CommandError(f"--command-config: {error}") from error
        if bootstrap == LOCAL:  # --bootstrap goes before the file's own
            self.bootstrap = values.get("bootstrap.servers", bootstrap)
        if unknown:
            warn(f"{command_config}: without meaning here: {', '.join(unknown)}")


def connect(bootstrap: str, command_config: Path | None) -> Admin:
    from ..administration.admin import Admin

    there = Connection(bootstrap, command_config)
    return Admin(there.bootstrap, security=there.security)


def connect_to_read(bootstrap: str, command_config: Path | None) -> Admin:
    from ..administration.admin import Admin

    there = Connection(bootstrap, command_config)
    return Admin(there.bootstrap, security=there.security, timeout_s=READ_S_MAX)
