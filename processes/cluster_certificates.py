"""The authority and the certificates of a local cluster; only their owner may read the keys.

tls/ca.pem, ca.key          the authority
tls/node-<id>.pem           a node's certificate with its key
tls/client-<user>.pem       a client's
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..runtime.clock import Clock
from ..runtime.connections.tls import node_name
from ..runtime.disk import RealDisk
from ..security.certificates import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    Authority,
    Lifetime,
    client_certificate,
    node_certificate,
)

AUTHORITY: Final = "Tidegate local cluster"
_DISK: Final = RealDisk()


class ClusterCertificates:
    """See the module's text.  Nothing is written before the first call."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    @property
    def authorities(self) -> Path:
        """PEM file of the authorities that nodes and clients accept."""
        return self._folder / "ca.pem"

    def of_node(self, node_id: int) -> Path:
        """PEM file of a node's certificate and key."""
        return self._folder / f"{node_name(node_id)}.pem"

    def of_client(self, user: str) -> Path:
        """PEM file of a client's certificate and key."""
        return self._folder / f"client-{user}.pem"

    @property
    def exists(self) -> bool:
        return _DISK.exists(self._folder / "ca.key")

    @property
    def authority(self) -> Authority:
        """The one that signs.  Raises CertificateError, OSError."""
        return Authority.load(_DISK.read(self._folder / "ca.pem"), _DISK.read(self._folder / "ca.key"))

    def renew_authority(self) -> None:
        """Makes a new authority, which signs from now on.  Certificates of the one before it are accepted as
        long as `forget_former_authorities` is not called."""
        _DISK.make_directory(self._folder)
        made = Authority.create(AUTHORITY, Lifetime.of_days(AUTHORITY_DAYS, self._clock.wall_ms())).pem
        former = _DISK.read(self.authorities) if _DISK.exists(self.authorities) else b""
        _DISK.write_secret(self._folder / "ca.key", made.key)
        _DISK.write_atomic(self.authorities, made.certificate + former)

    def forget_former_authorities(self) -> None:
        """Only certificates of the newest authority are accepted from now on."""
        _DISK.write_atomic(self.authorities, self.authority.pem.certificate)

    def renew(self, node_id: int, hosts: Iterable[str]) -> None:
        """Gives a node a new certificate."""
        lifetime = Lifetime.of_days(CERTIFICATE_DAYS, self._clock.wall_ms())
        made = node_certificate(self.authority, node_id, sorted(hosts), lifetime)
        _DISK.write_secret(self.of_node(node_id), made.with_key)

    def renew_client(self, user: str) -> None:
        """Gives a client a new certificate."""
        lifetime = Lifetime.of_days(CERTIFICATE_DAYS, self._clock.wall_ms())
        _DISK.write_secret(self.of_client(user), client_certificate(self.authority, user, lifetime).with_key)
