"""How a client of ours proves its identity, and how it knows the nodes: TLS and SASL.

    security = ClientSecurity("SASL_SSL", authorities="ca.pem", mechanism="SCRAM-SHA-512",
                              username="alice", password="...")
    Producer(bootstrap, security=security)

`from_properties` reads what Kafka's own tools take as `--command-config`.  The exchange is pure: `exchange`
yields what the client sends, over a Kafka connection or over gRPC.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..runtime.connections.listeners import SecurityProtocol
from ..runtime.connections.tls import ClientTls, TlsFiles
from .jaas import JaasError, parse_jaas
from .properties import SECURITY_PROPERTIES, PropertiesError, read_properties
from .sasl_mechanisms import OAUTHBEARER, PLAIN, TOKEN_BYTES_MAX
from .scram import ScramClient, ScramError, ScramMechanism

SCRAM: Final = {each.mechanism_name: each for each in ScramMechanism}
MECHANISMS: Final = (*SCRAM, PLAIN, OAUTHBEARER)
_OF_EVERY_CLIENT: Final = frozenset({"bootstrap.servers"})
_NONCE_BYTES: Final = 24


class SecurityError(ValueError):
    """Options of security that cannot be used; one sentence that names no password."""


class AuthenticationRefused(Exception):
    """The exchange failed: the node refuses the client, or does not prove that it knows the password."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """See the module's text.  Raises SecurityError, or TlsError for files that cannot be used."""

    protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    authorities: str = ""
    """PEM file of the authorities that sign the brokers' certificates; empty: those of the system."""
    certificate: str = ""
    """PEM file of the client's own certificate, with its key or beside `key`."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    check_host_name: bool = True
    mechanism: str = "SCRAM-SHA-512"
    username: str = ""
    password: str = field(default="", repr=False)
    is_token: bool = False
    """The user is the id of a delegation token, and the password its HMAC."""
    bearer_token: Callable[[], str] | None = field(default=None, repr=False)
    """OAUTHBEARER: called for each connection."""
    tls: ClientTls | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.protocol not in SecurityProtocol.__members__:
            raise SecurityError(
                f"security protocol {self.protocol!r}: choose from {', '.join(SecurityProtocol.__members__)}"
            )
        if self.has_sasl:
            self._check_sasl()
        if self.protocol in ("SSL", "SASL_SSL"):
            files = TlsFiles(
                _path(self.certificate), _path(self.key), _path(self.authorities), self.key_password
            )
            object.__setattr__(self, "tls", ClientTls(files, check_host_name=self.check_host_name))

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def _check_sasl(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise SecurityError(f"SASL mechanism {self.mechanism!r}: choose from {', '.join(MECHANISMS)}")
        if self.mechanism == OAUTHBEARER and self.bearer_token is None:
            raise SecurityError("OAUTHBEARER needs a bearer token")
        if self.mechanism != OAUTHBEARER and not (self.username and self.password):
            raise SecurityError(f"{self.mechanism} needs a user name and a password")

    def exchange(self) -> Generator[bytes, bytes, None]:
        """The client's tokens; each is answered with the node's, and the exchange is over when it ends.
        Raises AuthenticationRefused, SecurityError."""
        if self.mechanism == PLAIN:
            yield f"\0{self.username}\0{self.password}".encode()
        elif self.mechanism == OAUTHBEARER:
            yield from self._bearer()
        else:
            yield from self._scram()

    def _scram(self) -> Generator[bytes, bytes, None]:
        client = ScramClient(
            SCRAM[self.mechanism], self.username, self.password, secrets.token_urlsafe(_NONCE_BYTES)
        )
        try:
            first = yield client.first(token_authenticated=self.is_token)
            client.finish((yield client.final(first)))
        except ScramError as error:
            raise AuthenticationRefused(f"{self.mechanism} as {self.username}: {error}") from error

    def _bearer(self) -> Generator[bytes, bytes, None]:
        assert self.bearer_token is not None
        answer = yield f"n,,\x01auth=Bearer {self.bearer_token()}\x01\x01".encode()
        if answer:  # the reason of a refusal: the node waits for a word before it refuses
            yield b"\x01"
            raise AuthenticationRefused(f"the token is refused: {answer!r}")


def from_properties(values: Mapping[str, str]) -> tuple[ClientSecurity, list[str]]:
    """Of `security.protocol`, `ssl.*`, `sasl.*` as in a properties file of Kafka's tools, and the names that
    have no meaning here.  Raises SecurityError, TlsError."""
    for store in ("ssl.keystore.type", "ssl.truststore.type"):
        if values.get(store, "PEM").upper() != "PEM":
            raise SecurityError(f"{store}={values[store]}: only PEM files are read")
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    options: dict[str, Any] = {
        "protocol": protocol,
        "authorities": values.get("ssl.truststore.location", ""),
        "certificate": values.get("ssl.keystore.location", ""),
        "key": values.get("ssl.key.location", ""),
        "key_password": values.get("ssl.key.password", ""),
        "check_host_name": values.get("ssl.endpoint.identification.algorithm", "https") != "",
        "mechanism": values.get("sasl.mechanism", "SCRAM-SHA-512"),
    }
    if protocol.startswith("SASL_"):
        options |= _sasl(values)
    unknown = sorted(
        name for name in values if name not in SECURITY_PROPERTIES and name not in _OF_EVERY_CLIENT
    )
    return ClientSecurity(**options), unknown


def read_security(path: Path) -> tuple[ClientSecurity, dict[str, str], list[str]]:
    """Of a file of properties: what it says of security, all of its properties, and the names that have no
    meaning here.  Raises SecurityError, TlsError."""
    try:
        with path.open("rb") as file:
            values = read_properties(file.read())
        security, unknown = from_properties(values)
    except OSError as error:
        raise SecurityError(f"{path}: {error.strerror}") from error
    except (PropertiesError, SecurityError) as error:
        raise SecurityError(f"{path}: {error}") from error
    return security, values, unknown


def _sasl(values: Mapping[str, str]) -> dict[str, Any]:
    if "sasl.jaas.config" not in values:
        raise SecurityError("sasl.jaas.config is missing: it has the user and the password")
    try:
        jaas = parse_jaas(values["sasl.jaas.config"]).options
    except JaasError as error:
        raise SecurityError(f"sasl.jaas.config: {error}") from error
    options: dict[str, Any] = {
        "username": jaas.get("username", ""),
        "password": jaas.get("password", ""),
        "is_token": jaas.get("tokenauth", "") == "true",
    }
    token, location = jaas.get("token"), values.get("sasl.oauthbearer.token.endpoint.url", "")
    if token is not None:
        options["bearer_token"] = lambda: token
    elif location.startswith("file:"):
        options["bearer_token"] = _TokenFile(Path(location.removeprefix("file:").replace("//", "/", 1)))
    elif location:
        raise SecurityError(
            "sasl.oauthbearer.token.endpoint.url: only files are read, as file:///path/to/token"
        )
    return options


@dataclass(frozen=True, slots=True)
class _TokenFile:
    """A bearer token, which another program keeps fresh in a file."""

    path: Path

    def __call__(self) -> str:
        try:
            with self.path.open("rb") as file:
                return file.read(TOKEN_BYTES_MAX).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SecurityError(f"the token of {self.path} cannot be read") from error


def _path(text: str) -> Path | None:
    return Path(text) if text else None
