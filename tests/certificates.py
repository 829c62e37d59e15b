"""An authority for tests, and certificates that it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tidegate.runtime.tls import TlsFiles

DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass
class Authority:
    """Signs in a folder of its own; `name` tells two authorities apart."""

    folder: Path
    name: str = "quorum"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(self.name, self._key, [], days=2, authority=True)
        self.path = self.folder / f"{self.name}.pem"
        self.path.write_bytes(_pem(certificate))

    def issue(
        self, *dns_names: str, days: int = 1, from_days: int = -3, password: bytes | None = None
    ) -> TlsFiles:
        """A certificate for these names, valid from `from_days` until `days` from now (negative: past)."""
        key = ec.generate_private_key(ec.SECP256R1())
        stem = f"{self.name}-{'-'.join(dns_names) or 'nameless'}-{days}"
        certificate_path, key_path = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate_path.write_bytes(
            _pem(self._sign(stem, key, list(dns_names), days=days, from_days=from_days))
        )
        encryption = (
            serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        )
        key_path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return TlsFiles(certificate_path, key_path, self.path)

    def _sign(
        self,
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        names: list[str],
        *,
        days: int,
        from_days: int = -3,
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + from_days * DAY)
            .not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())
