"""An authority of one's own, and the certificates that it signs: for nodes, and for clients that prove their
identity by TLS.

Pure but for randomness: PEM text goes in and comes out, and the callers keep the files.  Keys
are of the curve P-256, which TLS 1.3, OpenSSL, BoringSSL (gRPC) and Java all have.

A node's certificate names its hosts, and the node itself by the DNS name `node-N`
(`runtime/connections/tls.py`): the authority should sign for one cluster alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..runtime.connections.tls import node_name

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
BACKDATED: Final = datetime.timedelta(minutes=5)
"""A certificate holds from before it was made: clocks of other machines are late."""


class CertificateError(ValueError):
    """PEM text that is not an authority with its key."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From when to when a certificate holds; UTC."""

    not_before: datetime.datetime
    not_after: datetime.datetime

    @classmethod
    def of_days(cls, days: int, wall_ms: int) -> Lifetime:
        """From `wall_ms`, a moment's wall time, on."""
        now = datetime.datetime.fromtimestamp(wall_ms / 1000, datetime.UTC)
        return cls(now - BACKDATED, now + datetime.timedelta(days=days))


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed certificate and its key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def with_key(self) -> bytes:
        """One file of both, as Kafka's `ssl.keystore.location` of the type PEM."""
        return self.key + self.certificate


class Authority:
    """Signs certificates."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, lifetime: Lifetime) -> Authority:
        """A new one with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, key, lifetime).issuer_name(_name(name))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Authority:
        """Of what `pem` gave.  Raises CertificateError."""
        try:
            found = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise CertificateError(f"this is not a PEM certificate and its key: {error}") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
            raise CertificateError("this key is not the certificate's")
        return cls(found, private)

    @property
    def pem(self) -> Certificate:
        """The authority's own certificate, which others trust, and its key, which stays secret."""
        return Certificate(_pem(self._certificate), _key_pem(self._key, b""))

    def sign(
        self, name: str, lifetime: Lifetime, *, hosts: Iterable[str] = (), key_password: bytes = b""
    ) -> Certificate:
        """A certificate with a new key.  `name`: its common name; `hosts`: the DNS names and IP addresses
        that it is for."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, key, lifetime)
        builder = builder.issuer_name(self._certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(uses, critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        names = [_alternative_name(host) for host in dict.fromkeys(hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return Certificate(_pem(signed), _key_pem(key, key_password))


def node_certificate(
    authority: Authority, node_id: int, hosts: Iterable[str], lifetime: Lifetime
) -> Certificate:
    """Of one node, which others reach at `hosts`."""
    name = node_name(node_id)
    return authority.sign(name, lifetime, hosts=[name, *hosts])


def client_certificate(authority: Authority, user: str, lifetime: Lifetime) -> Certificate:
    """Of a client whose principal is `User:CN=user` (`ssl.principal.mapping.rules`).  It names no node."""
    return authority.sign(user, lifetime)


@dataclass(frozen=True, slots=True)
class Description:
    """What a certificate says."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """The DNS names and IP addresses that it is for."""
    not_before: datetime.datetime
    not_after: datetime.datetime

    def holds(self, wall_ms: int) -> bool:
        return self.not_before.timestamp() * 1000 <= wall_ms < self.not_after.timestamp() * 1000

    def left_days(self, wall_ms: int) -> int:
        """Whole days until it ends; negative when it has."""
        return int((self.not_after.timestamp() - wall_ms / 1000) // 86_400)

    @property
    def shown(self) -> dict[str, object]:
        return {
            "subject": self.subject,
            "issuer": self.issuer,
            "names": self.names,
            "not_before": self.not_before.isoformat(),
            "not_after": self.not_after.isoformat(),
        }


def describe(pem: bytes) -> list[Description]:
    """The certificates of a PEM file; keys in it are not looked at.  Raises CertificateError."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError("this is not a PEM file with a certificate") from error
    return [
        Description(
            each.subject.rfc4514_string(),
            each.issuer.rfc4514_string(),
            _names_of(each),
            each.not_valid_before_utc,
            each.not_valid_after_utc,
        )
        for each in found
    ]


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in extension.value)


def _builder(name: str, key: ec.EllipticCurvePrivateKey, lifetime: Lifetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(lifetime.not_before)
        .not_valid_after(lifetime.not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates,
        crl_sign=signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey, password: bytes) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
