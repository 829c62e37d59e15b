"""The identity of the client at the other end of a connection to a Kafka listener.

| security protocol | principal |
|---|---|
| PLAINTEXT | ANONYMOUS |
| SSL | of the client's certificate (`ssl.principal.mapping.rules`); ANONYMOUS without one |
| SASL_PLAINTEXT, SASL_SSL | of the exchange (`security/sasl.py`); before it is over nothing is served |

On the brokers' listener, where both ends show certificates, a client may be one of the nodes (`nodes`).

`ListenerIdentity` is what all connections of a listener share, `Authentication` is that of one connection.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ...runtime.clock import Clock
from ...runtime.connections.tls import MutualTls, ServerTls, certified_nodes
from ...security.delegation_tokens import is_valid, token_password
from ...security.principals import ANONYMOUS, USER_TYPE, InvalidPrincipal, Principal, distinguished_name
from ...security.records import SecurityRecords
from ...security.sasl import Exchange, Identity, Mechanisms, SaslReply, SaslSession, SaslState
from ...security.sasl_mechanisms import (
    OAUTHBEARER,
    PLAIN,
    KnownUser,
    OAuthBearerExchange,
    PlainExchange,
    ScramExchange,
    TokenRefused,
)
from ...security.scram import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    UnknownUsers,
    credential_of,
)
from ..settings.security_settings import SCRAM_MECHANISMS, ListenerSecurity
from .key_set import BearerKeys

NONCE_BYTES: Final = 24
TOKEN_EXTENSION: Final = "tokenauth"
TOKEN_CREDENTIALS_MAX: Final = 10_000


class ListenerIdentity:
    """How one listener knows its clients; see the module's text."""

    def __init__(
        self,
        security: ListenerSecurity,
        *,
        clock: Clock,
        records: Callable[[], SecurityRecords],
        token_secret: bytes = b"",
        bearer: BearerKeys | None = None,
        certificates: MutualTls | None = None,
    ) -> None:
        """`records`: the cluster's credentials as of now.  `token_secret`: that of `token_hmac`; empty: there
        are no tokens.  `certificates`: of the nodes, on the listener where brokers speak to each other.
        Raises TlsError."""
        self.security = security
        self.is_for_nodes = certificates is not None
        self.tls = server_tls(security) if certificates is None else certificates.server
        self.clock = clock
        self._records = records
        self._token_secret = token_secret
        self._token_credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        self._bearer = bearer
        self._unknown_secret = secrets.token_bytes(32)
        self._unknown_users: dict[ScramMechanism, tuple[object, UnknownUsers]] = {}
        self._mechanisms: Mechanisms = {name: self._factory(name) for name in security.mechanisms}

    def session(self) -> SaslSession | None:
        """Of a new connection; None where the listener has no SASL."""
        if not self.security.has_sasl:
            return None
        return SaslSession(self._mechanisms, self.security.max_reauth_ms)

    def principal_of(self, certificate: Mapping[str, Any] | None) -> Principal:
        """Raises InvalidPrincipal when no rule maps the certificate's name."""
        if not certificate:
            return ANONYMOUS
        return Principal(USER_TYPE, self.security.mapper.name(distinguished_name(certificate)))

    def _factory(self, mechanism: str) -> Callable[[], Exchange]:
        if mechanism == PLAIN:
            return partial(PlainExchange, self.security.passwords)
        if mechanism == OAUTHBEARER:
            return partial(OAuthBearerExchange, self.bearer_identity)
        return partial(self._scram, SCRAM_MECHANISMS[mechanism])

    def _scram(self, mechanism: ScramMechanism) -> Exchange:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        return ScramExchange(mechanism, nonce, self._unknown(mechanism), partial(self._known_user, mechanism))

    def _unknown(self, mechanism: ScramMechanism) -> UnknownUsers:
        """Made anew when credentials have changed."""
        present = self._records().scram
        credentials, unknown = self._unknown_users.get(mechanism, (None, None))
        if unknown is None or credentials is not present:
            mine = [each for (_, used), each in present.items() if used is mechanism]
            unknown = UnknownUsers(self._unknown_secret, mine)
            self._unknown_users[mechanism] = present, unknown
        return unknown

    def _known_user(self, mechanism: ScramMechanism, first: ClientFirst) -> KnownUser | None:
        if first.extensions.get(TOKEN_EXTENSION) == "true":
            return self._known_token(mechanism, first.user)
        credential = self._records().scram.get((first.user, mechanism))
        return (
            None if credential is None else KnownUser(credential, Identity(Principal(USER_TYPE, first.user)))
        )

    def _known_token(self, mechanism: ScramMechanism, token_id: str) -> KnownUser | None:
        token = self._records().tokens.get(token_id)
        if token is None or not self._token_secret or not is_valid(token, self.now_ms()):
            return None
        owner = Principal(token.owner.principal_type, token.owner.name, token_authenticated=True)
        credential = self._token_credential(mechanism, token_id)
        return KnownUser(credential, Identity(owner, token.expires_at_ms))

    def _token_credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """Made once, with one salt: every peer may begin an exchange, and this takes milliseconds."""
        found = self._token_credentials.get((mechanism, token_id))
        if found is None:
            if len(self._token_credentials) >= TOKEN_CREDENTIALS_MAX:
                self._token_credentials.clear()
            salt, password = secrets.token_bytes(SALT_BYTES), token_password(self._token_secret, token_id)
            salted = mechanism.salted_password(password, salt, ITERATIONS_MIN)
            found = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
            self._token_credentials[mechanism, token_id] = found
        return found

    def bearer_identity(self, token: str, now_ms: int) -> Identity:
        """Raises TokenRefused."""
        if self._bearer is None:
            raise TokenRefused("no key set is configured (sasl.oauthbearer.jwks.endpoint.url)")
        return self._bearer.identity(token, now_ms)

    def now_ms(self) -> int:
        return self.clock.wall_ms()


def server_tls(security: ListenerSecurity) -> ServerTls | None:
    """None for a listener that is not encrypted.  Raises TlsError."""
    if security.tls is None:
        return None
    return ServerTls(security.tls, security.client_auth, security.options)


class Authentication:
    """See the module's text."""

    def __init__(self, listener: ListenerIdentity, certificate: Mapping[str, Any] | None) -> None:
        self.listener = listener
        self.nodes = certified_nodes(certificate) if listener.is_for_nodes else frozenset[int]()
        """The nodes that the client's certificate names."""
        self.failure = ""
        """Why the connection must be closed once its answers are sent."""
        self._session = listener.session()
        self._principal = ANONYMOUS
        if self._session is None:
            try:
                self._principal = listener.principal_of(certificate)
            except InvalidPrincipal as error:
                self.failure = str(error)
        if listener.is_for_nodes and not self.nodes:
            self.failure = "the certificate names no node, and the listener is for nodes alone"

    @property
    def principal(self) -> Principal:
        """Of a request that is served."""
        session = self._session
        if session is None:
            return self._principal
        assert session.principal is not None, "nothing is served before"
        return session.principal

    @property
    def is_over(self) -> bool:
        """Whether requests are served."""
        return not self.failure and (self._session is None or self._session.state is SaslState.AUTHENTICATED)

    @property
    def frame_bytes_max(self) -> int:
        """Of a request before the client has authenticated."""
        return self.listener.security.token_bytes_max

    @property
    def takes_raw_tokens(self) -> bool:
        session = self._session
        return session is not None and session.state is SaslState.CHALLENGED and session.takes_raw_tokens

    def refuses(self, api_key: int) -> str | None:
        """Why the connection must be closed instead of serving this request; None when it is served."""
        if self.failure:
            return self.failure
        return None if self._session is None else self._session.refuses(api_key, self.listener.now_ms())

    def handshake(self, mechanism: str, version: int) -> SaslReply | None:
        """None on a listener without SASL."""
        if self._session is None:
            return None
        return self._noted(self._session.handshake(mechanism, version, self.listener.now_ms()))

    def authenticate(self, token: bytes) -> SaslReply | None:
        """None on a listener without SASL."""
        if self._session is None:
            return None
        return self._noted(self._session.authenticate(token, self.listener.now_ms()))

    def _noted(self, reply: SaslReply) -> SaslReply:
        if self._session is not None and self._session.state is SaslState.FAILED:
            self.failure = f"authentication failed: {reply.detail}"
        return reply
