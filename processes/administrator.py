"""The administrator of a local cluster whose clients log in.

client.properties       what a client needs to connect as the administrator, with the password
tls/first-users         what proves that password, for the nodes' first start (`bootstrap.scram.credentials`)

Only their owner may read either; no other file has the password.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from ..runtime.disk import RealDisk
from ..security.client_security import ClientSecurity, read_security
from ..security.first_users import FirstUser
from ..security.properties import read_properties, write_property
from ..security.scram import SALT_BYTES

NAME: Final = "admin"
PASSWORD_BYTES: Final = 24
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_DISK: Final = RealDisk()


class Administrator:
    """See the module's text."""

    def __init__(self, folder: Path) -> None:
        self.properties_path = folder / "client.properties"
        self._first_users_path = folder / "tls" / "first-users"

    def create(self, authorities: Path) -> None:
        """With a random password; `authorities`: the PEM file by which clients know the nodes."""
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        user = FirstUser.with_password(NAME, password, secrets.token_bytes(SALT_BYTES))
        properties = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": user.mechanism.mechanism_name,
            "sasl.jaas.config": f'{_MODULE} required username="{NAME}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authorities),
        }
        _DISK.write_secret(self._first_users_path, str(user).encode())
        self._write(properties)

    def note_bootstrap(self, bootstrap: str) -> None:
        """Where the brokers are, which may have moved."""
        properties = read_properties(_DISK.read(self.properties_path))
        if properties.get("bootstrap.servers") != bootstrap:
            self._write({"bootstrap.servers": bootstrap} | {
                name: value for name, value in properties.items() if name != "bootstrap.servers"
            })  # fmt: skip

    @property
    def first_users(self) -> str:
        return _DISK.read(self._first_users_path).decode()

    def security(self) -> ClientSecurity:
        """Of the file as it is now: its owner may have changed the password.  Raises SecurityError,
        TlsError."""
        return read_security(self.properties_path)[0]

    def _write(self, properties: dict[str, str]) -> None:
        lines = (write_property(name, value) for name, value in properties.items())
        _DISK.write_secret(self.properties_path, "".join(lines).encode())
