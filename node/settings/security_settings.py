"""The settings of security: TLS, SASL, authorization (`ssl.*`, `sasl.*`, `super.users`, ...), with Kafka's
names and meaning.

What concerns a listener may be set for it alone: `listener.name.sasl_ssl.ssl.client.auth` holds for the
listener SASL_SSL instead of `ssl.client.auth`.  PLAIN's users stand where Kafka has them:

    listener.name.sasl_ssl.plain.sasl.jaas.config = 'org.apache.kafka.common.security.plain.PlainLoginModule
        required user_alice="secret" user_bob="other";'

Certificates are PEM files; Java's key stores are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...runtime.connections.host_names import host_problem
from ...runtime.connections.listeners import Listener, SecurityProtocol
from ...runtime.connections.tls import VERSIONS, ClientAuth, TlsFiles, TlsOptions
from ...security.bearer_tokens import TokenRules
from ...security.first_users import FirstUser, FirstUserError
from ...security.jaas import JaasError, parse_jaas
from ...security.principals import InvalidPrincipal, Principal, SslPrincipalMapper, parse_principals
from ...security.sasl_mechanisms import OAUTHBEARER, PLAIN
from ...security.scram import ScramMechanism

LISTENER_PREFIX: Final = "listener.name."
PEM: Final = "PEM"
SCRAM_MECHANISMS: Final = {each.mechanism_name: each for each in ScramMechanism}
MECHANISMS: Final = (*SCRAM_MECHANISMS, PLAIN, OAUTHBEARER)
KEY_SET_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
JAAS_CONFIG: Final = "sasl.jaas.config"
CONNECTIONS_UNBOUNDED: Final = 2**31 - 1
MAX_CONNECTIONS: Final = "max.connections"
"""Of one listener, besides that of all (KIP-402)."""
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENER_SETTINGS: Final = frozenset(
    {
        "ssl.keystore.location", "ssl.keystore.type", "ssl.key.location", "ssl.key.password",
        "ssl.truststore.location", "ssl.truststore.type", "ssl.client.auth", "ssl.enabled.protocols",
        "ssl.cipher.suites", "ssl.principal.mapping.rules", "sasl.enabled.mechanisms",
        "connections.max.reauth.ms", "connection.failed.authentication.delay.ms",
        "sasl.server.max.receive.size", MAX_CONNECTIONS,
    }
)  # fmt: skip
"""What may be set for one listener."""

_LISTENER_KEY = re.compile(r"listener\.name\.([a-z0-9_-]+)\.(.+)")
_MECHANISM_KEY = re.compile(r"([a-z0-9-]+)\." + re.escape(JAAS_CONFIG))


class SecuritySettingError(ValueError):
    """A setting of security that cannot be used; the message names it."""


def setting_of_listener(key: str) -> tuple[str, str] | None:
    """(listener name in capitals, setting) of a key like `listener.name.sasl_ssl.ssl.client.auth`; None for
    another key.  Raises SecuritySettingError when a listener has no such setting."""
    found = _LISTENER_KEY.fullmatch(key)
    if found is None:
        return None
    name, setting = found.groups()
    mechanism = _MECHANISM_KEY.fullmatch(setting)
    if setting not in LISTENER_SETTINGS and mechanism is None:
        raise SecuritySettingError(f"{setting} cannot be set for one listener")
    if mechanism is not None and mechanism[1].upper() != PLAIN:
        raise SecuritySettingError(f"{key}: only {PLAIN}'s users are set here; others' are in the metadata")
    return name.upper(), setting


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How one listener knows its clients."""

    name: str
    protocol: SecurityProtocol
    tls: TlsFiles | None
    client_auth: ClientAuth
    options: TlsOptions
    mapper: SslPrincipalMapper
    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    """PLAIN's users."""
    max_reauth_ms: int
    failure_delay_s: float
    token_bytes_max: int
    connections_max: int = CONNECTIONS_UNBOUNDED
    """Besides the limit of all listeners together."""

    @property
    def is_encrypted(self) -> bool:
        return self.protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self.protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def listener_security(
    listener: Listener, values: Mapping[str, Any], *, is_for_nodes: bool = False
) -> ListenerSecurity:
    """Of a listener.  `values`: the settings and those of single listeners; `is_for_nodes`: an SSL listener
    requires certificates, whatever `ssl.client.auth` says.  Raises SecuritySettingError."""

    def value(setting: str) -> Any:
        return values.get(f"{LISTENER_PREFIX}{listener.name.lower()}.{setting}", values.get(setting))

    protocol = listener.security_protocol
    is_encrypted = protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
    has_sasl = protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
    mechanisms = tuple(value("sasl.enabled.mechanisms")) if has_sasl else ()
    unknown = [each for each in mechanisms if each not in MECHANISMS]
    if unknown:
        raise SecuritySettingError(
            f"sasl.enabled.mechanisms of {listener.name} names {unknown[0]}: choose from "
            f"{', '.join(MECHANISMS)}"
        )
    if has_sasl and not mechanisms:
        raise SecuritySettingError(f"sasl.enabled.mechanisms of {listener.name} is empty")
    jaas = f"{LISTENER_PREFIX}{listener.name.lower()}.{PLAIN.lower()}.{JAAS_CONFIG}"
    if PLAIN in mechanisms and not values.get(jaas):
        raise SecuritySettingError(f"{PLAIN} on {listener.name} needs its users: set {jaas}")
    client_auth = ClientAuth.NONE
    if is_encrypted and is_for_nodes:
        client_auth = ClientAuth.REQUIRED
    elif is_encrypted and not has_sasl:
        client_auth = _client_auth(value("ssl.client.auth"))
    elif is_encrypted:  # as in Kafka: a client of SASL shows a certificate only where its listener says so
        own = values.get(f"{LISTENER_PREFIX}{listener.name.lower()}.ssl.client.auth")
        client_auth = _client_auth(own) if own is not None else ClientAuth.NONE
    return ListenerSecurity(
        name=listener.name,
        protocol=protocol,
        tls=_tls_files(listener.name, value, client_auth) if is_encrypted else None,
        client_auth=client_auth,
        options=_options(value),
        mapper=_mapper(value("ssl.principal.mapping.rules")),
        mechanisms=mechanisms,
        passwords=plain_passwords(values[jaas], jaas) if PLAIN in mechanisms else {},
        max_reauth_ms=value("connections.max.reauth.ms"),
        failure_delay_s=value("connection.failed.authentication.delay.ms") / 1000,
        token_bytes_max=value("sasl.server.max.receive.size"),
        connections_max=values.get(
            f"{LISTENER_PREFIX}{listener.name.lower()}.{MAX_CONNECTIONS}", CONNECTIONS_UNBOUNDED
        ),
    )


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text)
    except ValueError:
        choices = ", ".join(each.value for each in ClientAuth)
        raise SecuritySettingError(f"ssl.client.auth = {text!r}: choose from {choices}") from None


def _options(value: Any) -> TlsOptions:
    versions = frozenset(value("ssl.enabled.protocols"))
    if not versions or not versions <= set(VERSIONS):
        raise SecuritySettingError(
            f"ssl.enabled.protocols = {', '.join(sorted(versions))}: choose from {', '.join(VERSIONS)}"
        )
    return TlsOptions(versions=versions, ciphers=":".join(value("ssl.cipher.suites")))


def _mapper(rules: str) -> SslPrincipalMapper:
    try:
        return SslPrincipalMapper(rules)
    except InvalidPrincipal as error:
        raise SecuritySettingError(f"ssl.principal.mapping.rules: {error}") from error


def _tls_files(name: str, value: Any, client_auth: ClientAuth) -> TlsFiles:
    for setting in ("ssl.keystore.type", "ssl.truststore.type"):
        if value(setting).upper() != PEM:
            raise SecuritySettingError(f"{setting} = {value(setting)}: only {PEM} files are read")
    certificate, key = value("ssl.keystore.location"), value("ssl.key.location")
    authorities = value("ssl.truststore.location")
    if not certificate:
        raise SecuritySettingError(
            f"the listener {name} needs a certificate: set ssl.keystore.location to a PEM file with its key "
            "and chain"
        )
    if client_auth is not ClientAuth.NONE and not authorities:
        raise SecuritySettingError(
            f"certificates of clients are {client_auth.value} on the listener {name}: set "
            "ssl.truststore.location to the authorities"
        )
    return TlsFiles(
        Path(certificate),
        Path(key) if key else None,
        Path(authorities) if authorities else None,
        value("ssl.key.password"),
    )


def plain_passwords(text: str, key: str) -> Mapping[str, str]:
    """User -> password, of `PlainLoginModule required user_alice="secret";`.  Raises SecuritySettingError,
    which holds no password."""
    try:
        entry = parse_jaas(text)
    except JaasError as error:
        raise SecuritySettingError(f"{key}: {error}") from error
    if entry.module != PLAIN_MODULE:
        raise SecuritySettingError(f"{key}: the module of {PLAIN} is {PLAIN_MODULE}")
    users = {name: password for name, password in entry.options.items() if name.startswith("user_")}
    return {name.removeprefix("user_"): password for name, password in users.items()}


def super_users(text: str) -> frozenset[Principal]:
    """Raises SecuritySettingError."""
    try:
        return parse_principals(text)
    except InvalidPrincipal as error:
        raise SecuritySettingError(f"super.users: {error}") from error


def first_users(text: str) -> tuple[FirstUser, ...]:
    """Raises SecuritySettingError, which shows none of a text."""
    try:
        return tuple(FirstUser.parse(each) for each in text.split(";") if each.strip())
    except FirstUserError as error:
        raise SecuritySettingError(f"bootstrap.scram.credentials: {error}") from error


@dataclass(frozen=True, slots=True)
class HttpsUrl:
    """Its text has no query: a secret may stand there."""

    host: str
    port: int
    path: str
    query: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.path}"

    @property
    def target(self) -> str:
        """What a request names."""
        return f"{self.path}?{self.query}" if self.query else self.path


def key_set_location(values: Mapping[str, Any]) -> Path | HttpsUrl | None:
    """Where the keys of bearer tokens are; None where there are none.  Raises SecuritySettingError, which
    shows nothing of the URL."""
    url = values[KEY_SET_URL]
    if not url:
        return None
    if url.startswith("file:///"):
        return Path(url.removeprefix("file://"))
    if url.lower().startswith("http://"):
        raise SecuritySettingError(
            f"{KEY_SET_URL}: over http:// another machine could answer with keys of its own, and sign tokens "
            "of any user with them: write https://, or file:///path/to/jwks.json"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", 443 if parts.port is None else parts.port
    except ValueError as error:
        raise SecuritySettingError(f"{KEY_SET_URL} is no URL: {error}") from error
    problem = None
    if port == 0 or not url.isascii() or any(each.isspace() or not each.isprintable() for each in url):
        problem = "it holds what a URL cannot hold"
    elif parts.scheme != "https" or not host:
        problem = "write file:///path/to/jwks.json or https://host/path"
    elif parts.username is not None or parts.fragment:
        problem = "no user, no password and no fragment can stand there"
    if problem := problem or host_problem(host):
        raise SecuritySettingError(f"{KEY_SET_URL}: {problem}")
    return HttpsUrl(host, port, parts.path or "/", parts.query)


def token_rules(values: Mapping[str, Any]) -> TokenRules:
    """What a bearer token must say."""
    return TokenRules(
        audiences=frozenset(values["sasl.oauthbearer.expected.audience"]),
        issuer=values["sasl.oauthbearer.expected.issuer"],
        subject_claim=values["sasl.oauthbearer.sub.claim.name"],
        clock_skew_s=values["sasl.oauthbearer.clock.skew.seconds"],
    )
