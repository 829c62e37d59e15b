"""An authority for tests, which keeps what it signs in files."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from tidegate.runtime.connections.tls import TlsFiles
from tidegate.security import certificates
from tidegate.security.certificates import Lifetime

DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """Signs in a folder of its own; `name` tells two authorities apart."""

    folder: Path
    name: str = "quorum"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.signer = certificates.Authority.create(self.name, lifetime(2))
        self.path = self.folder / f"{self.name}.pem"
        self.path.write_bytes(self.signer.pem.certificate)

    def issue(
        self, *hosts: str, days: int = 1, from_days: int = -3, password: bytes = b"", user: str = ""
    ) -> TlsFiles:
        """A certificate for these hosts, valid from `from_days` until `days` from now (negative: past)."""
        stem = f"{self.name}-{'-'.join(hosts) or user or 'nameless'}-{days}"
        signed = self.signer.sign(user or stem, lifetime(days, from_days), hosts=hosts, key_password=password)
        certificate_path, key_path = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate_path.write_bytes(signed.certificate)
        key_path.write_bytes(signed.key)
        return TlsFiles(certificate_path, key_path, self.path)


def lifetime(days: int = 1, from_days: int = -3) -> Lifetime:
    """From `from_days` until `days` from now."""
    now = datetime.datetime.now(datetime.UTC)
    return Lifetime(now + from_days * DAY, now + days * DAY)
