"""TLS of listeners and connections: certificates from PEM files, which are read again when they change.

`ServerTls` and `ClientTls` each hold the newest context of their files.  `reload` reads the files anew when
one of them changed: connections from then on are made with them, and those that are open stay.  Files that
do not fit together are refused with a TlsError and change nothing: a certificate and its key are rarely
replaced in one step, and the next `reload` finds both.

TLS 1.2 and 1.3.  No session is resumed: a certificate that an authority no longer vouches for ends with its
connection, and opens no other.

`MutualTls` is for connections between nodes.  A certificate names node N by the DNS name (subject alternative
name) `node-N`; it may name several.
"""

from __future__ import annotations

import datetime
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

HANDSHAKE_S_MAX: Final = 5.0
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PEM_BYTES_MAX: Final = 1 << 20


class TlsError(Exception):
    """A certificate, its key or the authorities cannot be used; the message names the file or its fault."""


class ClientAuth(Enum):
    """`ssl.client.auth`: whether a listener's clients show a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the own certificate (with the intermediate certificates), its key, and the authorities whose
    certificates are accepted."""

    certificate: Path | None = None
    """None: no certificate is shown."""
    key: Path | None = None
    """None: it stands in the certificate's file, as in a PEM key store of Kafka."""
    authorities: Path | None = None
    """None: the authorities of the system."""
    key_password: str = field(default="", repr=False)

    def fingerprint(self) -> tuple[tuple[int, int, int], ...]:
        """Changes with each of the files.  Raises TlsError for one that is not there."""
        return tuple(_fingerprint(path) for path in (self.certificate, self.key, self.authorities) if path)

    def pem(self) -> Pem:
        """What the files hold, for gRPC, which takes no files; the key is not encrypted any more.  Raises
        TlsError."""
        authorities = None if self.authorities is None else _read(self.authorities)
        if self.certificate is None:
            return Pem(None, None, authorities)
        from cryptography import x509  # takes a while, and most clients need nothing of it
        from cryptography.hazmat.primitives import serialization

        chain, key = _read(self.certificate), _read(self.key or self.certificate)
        try:
            password = self.key_password.encode() or None
            private = serialization.load_pem_private_key(key, password)
            is_own = x509.load_pem_x509_certificates(chain)[0].public_key() == private.public_key()
        except (ValueError, TypeError) as error:
            raise TlsError(f"{self.certificate} and its key cannot be read: {error}") from error
        if not is_own:
            raise TlsError(f"{self.certificate} has another key than {self.key}")
        plain = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pem(chain, plain, authorities)


@dataclass(frozen=True, slots=True)
class Pem:
    """What `TlsFiles` name."""

    certificate: bytes | None
    key: bytes | None = field(repr=False)
    authorities: bytes | None


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate holds; UTC."""

    not_before: datetime.datetime
    not_after: datetime.datetime

    def check(self, path: Path, now: datetime.datetime) -> None:
        """Raises TlsError outside of the time."""
        if now < self.not_before:
            raise TlsError(f"{path} is not valid before {self.not_before:%Y-%m-%d %H:%M:%S} UTC")
        if now >= self.not_after:
            raise TlsError(f"{path} has expired at {self.not_after:%Y-%m-%d %H:%M:%S} UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """What both ends agree on."""

    versions: frozenset[str] = frozenset(VERSIONS)
    ciphers: str = ""
    """Of TLS 1.2, in OpenSSL's words; empty: OpenSSL's choice."""

    def apply(self, context: ssl.SSLContext) -> None:
        """Raises TlsError for versions or ciphers that OpenSSL does not have."""
        versions = sorted(VERSIONS[name] for name in self.versions if name in VERSIONS)
        if not versions or len(versions) < len(self.versions):
            raise TlsError(
                f"{', '.join(sorted(self.versions))}: the versions of TLS are {', '.join(VERSIONS)}"
            )
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        if self.ciphers:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError as error:
                raise TlsError(f"{self.ciphers}: OpenSSL knows none of these ciphers") from error


class _Reloading(ABC):
    """A context that is built anew when one of its files changed."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.validity: Validity | None = None
        """Of the own certificate; None without one."""
        self._seen = files.fingerprint()
        self.newest = self._loaded()

    def reload(self) -> bool:
        """Whether the files changed and are used from now on.  Raises TlsError, and goes on with what it has,
        when they cannot be used."""
        seen = self.files.fingerprint()
        if seen == self._seen:
            return False
        self.newest = self._loaded()
        self._seen = seen
        return True

    @property
    def not_after(self) -> datetime.datetime:
        """When the own certificate expires."""
        assert self.validity is not None, "there is a certificate"
        return self.validity.not_after

    def replace(self, other: _Reloading) -> None:
        """Uses from now on what `other` has loaded of the same files."""
        self.newest, self.validity, self._seen = other.newest, other.validity, other._seen

    def _loaded(self) -> ssl.SSLContext:
        context = self._context()
        if self.files.authorities is not None:
            try:
                context.load_verify_locations(cafile=self.files.authorities)
            except (OSError, ssl.SSLError) as error:
                raise TlsError(
                    f"{self.files.authorities} is not a readable PEM file of certificates: {error}"
                ) from error
        if self.files.certificate is not None:
            validity = validity_of(self.files.certificate)
            validity.check(self.files.certificate, datetime.datetime.now(datetime.UTC))
            self._load_key(context, self.files.certificate)
            self.validity = validity
        return context

    @abstractmethod
    def _context(self) -> ssl.SSLContext:
        """A context without files.  Raises TlsError."""

    def _load_key(self, context: ssl.SSLContext, certificate: Path) -> None:
        files = self.files

        def password() -> str:
            """OpenSSL calls this for an encrypted key; without it OpenSSL would ask on the terminal."""
            if not files.key_password:
                raise ValueError("the key is encrypted, and no password is given")
            return files.key_password

        try:
            context.load_cert_chain(certificate, files.key, password=password)
        except (OSError, ssl.SSLError, ValueError) as error:
            both = f"{certificate} and {files.key} are" if files.key else f"{certificate} is"
            raise TlsError(f"{both} not a PEM certificate and its key: {error}") from error


class ServerTls(_Reloading):
    """The contexts of a listener.  Raises TlsError for files that cannot be used."""

    def __init__(
        self, files: TlsFiles, client_auth: ClientAuth = ClientAuth.NONE, options: TlsOptions | None = None
    ) -> None:
        if files.certificate is None:
            raise TlsError("a listener needs a certificate")
        if client_auth is not ClientAuth.NONE and files.authorities is None:
            raise TlsError("a listener whose clients show certificates needs the authorities that sign them")
        self.client_auth = client_auth
        self._options = options or TlsOptions()
        super().__init__(files)

    @property
    def context(self) -> ssl.SSLContext:
        """Of one connection, which it hands over to the newest.

        OpenSSL finds a session of TLS 1.2 again in the context in which its connection began, with the
        client's certificate of then, and Python has no switch for that: so no two connections share one.
        """
        context = self._context()
        context.sni_callback = self._choose
        return context

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._options.apply(context)
        context.num_tickets = 0
        context.verify_mode = _VERIFY_MODES[self.client_auth]
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this for each client's hello, also for one without a name."""
        connection.context = self.newest


class ClientTls(_Reloading):
    """The context of connections to servers.  Raises TlsError for files that cannot be used."""

    def __init__(
        self, files: TlsFiles, *, check_host_name: bool = True, options: TlsOptions | None = None
    ) -> None:
        self.check_host_name = check_host_name
        self._options = options or TlsOptions()
        super().__init__(files)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._options.apply(context)
        context.check_hostname = self.check_host_name
        if self.files.authorities is None:
            context.load_default_certs()
        return context


@dataclass(slots=True)
class MutualTls:
    """Both ends of connections between nodes that authenticate each other, by TLS 1.3 only."""

    files: TlsFiles
    node_id: int
    server: ServerTls
    client: ClientTls
    pem: Pem
    """Of the same files, for gRPC."""
    _seen: tuple[tuple[int, int, int], ...]

    @classmethod
    def load(cls, files: TlsFiles, node_id: int) -> MutualTls:
        """Raises TlsError also when the certificate is not `node_id`'s, has expired, or is not of the
        authorities: a node whose certificate every peer would refuse should say so when it starts."""
        options, seen = TlsOptions(versions=frozenset({"TLSv1.3"})), files.fingerprint()
        server = ServerTls(files, ClientAuth.REQUIRED, options)
        # a certificate is a node's, wherever it runs: the hello says which node, and is compared
        client = ClientTls(files, check_host_name=False, options=options)
        tls = cls(files, node_id, server, client, files.pem(), seen)
        try:
            named = certified_nodes(tls._own_certificate())
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TlsError(f"{files.certificate} is not accepted by {files.authorities}: {reason}") from error
        if node_id not in named:
            names = ", ".join(map(node_name, sorted(named))) or "no node"
            raise TlsError(
                f"{files.certificate} names {names}: this node needs the DNS name {node_name(node_id)}"
            )
        return tls

    def reload(self) -> bool:
        """Whether the files changed and are used from now on, by `server`, `client` and `pem` alike.  Raises
        TlsError, and goes on with what it has, when this node could not start with them."""
        if self.files.fingerprint() == self._seen:
            return False
        fresh = self.load(self.files, self.node_id)
        self.server.replace(fresh.server)
        self.client.replace(fresh.client)
        self.pem, self._seen = fresh.pem, fresh._seen
        return True

    @property
    def not_after(self) -> datetime.datetime:
        """When the own certificate expires."""
        return self.server.not_after

    def _own_certificate(self) -> Mapping[str, Any]:
        """As a peer will see it: a handshake of this node with itself, in memory."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.client.newest.wrap_bio(to_client, to_server)
        server = self.server.newest.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):  # TLS 1.3 takes three half-turns
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return server.getpeercert() or {}


def certified_nodes(certificate: Mapping[str, Any] | None) -> frozenset[int]:
    """The node ids that a verified certificate names; none for None."""
    names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    return named_nodes(names)


def named_nodes(dns_names: Iterable[str]) -> frozenset[int]:
    """... by its DNS names."""
    found = (re.fullmatch(r"node-(0|[1-9][0-9]{0,9})", name) for name in dns_names)
    return frozenset(int(match[1]) for match in found if match is not None)


def node_name(node_id: int) -> str:
    """The DNS name by which a certificate names a node; gRPC's channels ask for exactly this name."""
    return f"node-{node_id}"


def validity_of(path: Path) -> Validity:
    """Of the first certificate of a PEM file.  Raises TlsError for a file without one."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificates(_read(path))[0]
    except ValueError as error:
        raise TlsError(f"{path} is not a readable PEM file of a certificate: {error}") from error
    return Validity(certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(PEM_BYTES_MAX)
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from error


def _fingerprint(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
