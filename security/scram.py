"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84): credentials, and both sides of the exchange.
Pure: nonces come from the caller.

    client  n,,n=alice,r=NONCE
    server  r=NONCE+SERVER,s=salt,i=iterations
    client  c=biws,r=NONCE+SERVER,p=proof
    server  v=signature                             or e=error

The server answers an unknown user with a salt and an iteration count that a user of that name could have
(`UnknownUsers`), and refuses at the end, as for a wrong password: neither messages nor their times tell which
users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds."""
MESSAGE_BYTES_MAX: Final = 4_096
SALT_BYTES: Final = 32
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_NAME: Final = re.compile(r"(?:[^=,\x00]|=2C|=3D)+")


class ScramError(Exception):
    """The exchange has failed; the message is for the node's log, and names no password."""


class ScramMechanism(Enum):
    """A mechanism, with Kafka's number of it."""

    SHA_256 = ("SCRAM-SHA-256", "sha256", 1)
    SHA_512 = ("SCRAM-SHA-512", "sha512", 2)

    def __init__(self, mechanism_name: str, hash_name: str, code: int) -> None:
        self.mechanism_name = mechanism_name
        self.hash_name = hash_name
        self.code = code

    @property
    def digest_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Costs milliseconds of CPU: not on the loop for many."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the cluster keeps of a user's password: who reads it cannot log in with it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Of a salted password, as AlterUserScramCredentials carries it (KIP-554)."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    server_key = mechanism.hmac(salted_password, b"Server Key")
    return ScramCredential(salt, mechanism.hash(client_key), server_key, iterations)


_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


def _shape(credential: ScramCredential) -> tuple[int, int, bool]:
    """Iterations, length of the salt, and whether it is of the characters that Kafka's tools take for it."""
    salt = credential.salt
    return credential.iterations, len(salt), not salt.strip(_BASE_36)


class UnknownUsers:
    """What users would have that do not exist: the same on every node and listener and after each restart,
    because all of it comes from the credentials of those that do."""

    def __init__(self, secret: bytes, credentials: Iterable[ScramCredential] = ()) -> None:
        """`credentials`: of one mechanism.  `secret`: used where there are none."""
        known = list(credentials)
        self._shapes = sorted({_shape(each) for each in known}) or [(ITERATIONS_MIN, SALT_BYTES, False)]
        # one credential, and not all: most changes of users leave every unknown user's salt as it is
        key = min((each.server_key for each in known), default=secret)
        self._secret = hmac.digest(key, b"unknown users", "sha256")

    def salt_and_iterations(self, mechanism: ScramMechanism, user: str) -> tuple[bytes, int]:
        """Of a user of that name."""
        drawn = hashlib.shake_256(
            hmac.digest(self._secret, f"{mechanism.mechanism_name} {user}".encode(), "sha512")
        )
        iterations, salt_bytes, is_base_36 = self._shapes[
            int.from_bytes(drawn.digest(8), "big") % len(self._shapes)
        ]
        salt = drawn.digest(8 + salt_bytes)[8:]
        return bytes(_BASE_36[each % 36] for each in salt) if is_base_36 else salt, iterations


def _attributes(message: bytes, *names: str) -> dict[str, str]:
    """The attributes in exactly this order; others may follow, as RFC 5802 allows extensions."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of {len(message)} bytes")
    try:
        parts = message.decode().split(",")
    except UnicodeDecodeError as error:
        raise ScramError("a message that is no UTF-8") from error
    found: dict[str, str] = {}
    if len(parts) < len(names):
        raise ScramError("a message with too few attributes")
    for part, name in zip(parts, names, strict=False):
        if not part.startswith(f"{name}=") or len(part) < 3:
            raise ScramError(f"a message without the attribute {name}= in its place")
        found[name] = part[2:]
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise ScramError("an attribute that is no base64") from error


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def escaped_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped_name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise ScramError("a user name that is not escaped as it must be")
    return text.replace("=2C", ",").replace("=3D", "=")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message."""

    user: str
    nonce: str
    authorization_id: str
    extensions: Mapping[str, str]
    bare: str
    header: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises ScramError."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of {len(message)} bytes")
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a message that is no UTF-8") from error
    binding, _, rest = text.partition(",")
    authorization, comma, bare = rest.partition(",")
    if binding not in ("n", "y") or not comma:
        raise ScramError("channel binding is not supported")
    if authorization and not authorization.startswith("a="):
        raise ScramError("an authorization id without a=")
    found = _attributes(bare.encode(), "n", "r")
    if _PRINTABLE.fullmatch(found["r"]) is None:
        raise ScramError("a nonce with characters that it must not have")
    extensions = dict(part.split("=", 1) for part in bare.split(",")[2:] if "=" in part)
    return ClientFirst(
        _unescaped_name(found["n"]),
        found["r"],
        _unescaped_name(authorization[2:]) if authorization else "",
        extensions,
        bare,
        f"{binding},{authorization},",
    )


class ScramServer:
    """The server's side of one exchange: `challenge` once, then `verify` once."""

    def __init__(self, mechanism: ScramMechanism, nonce: str, unknown: UnknownUsers) -> None:
        """`nonce`: fresh and not guessable."""
        self._mechanism = mechanism
        self._nonce = nonce
        self._unknown = unknown
        self._first: ClientFirst | None = None
        self._credential: ScramCredential | None = None
        self._server_first = ""

    def challenge(self, first: ClientFirst, credential: ScramCredential | None) -> bytes:
        """The server's first message; credential None: no such user."""
        if self._first is not None:
            raise ScramError("a second first message")
        if first.authorization_id and first.authorization_id != first.user:
            raise ScramError("a client may log in as itself only")
        self._first, self._credential = first, credential
        # drawn in any case: the time must not tell which users exist
        salt, iterations = self._unknown.salt_and_iterations(self._mechanism, first.user)
        if credential is not None:
            salt, iterations = credential.salt, credential.iterations
        self._server_first = f"r={first.nonce}{self._nonce},s={_encoded(salt)},i={iterations}"
        return self._server_first.encode()

    def verify(self, message: bytes) -> bytes:
        """The server's last message: the client knew the password.  Raises ScramError; the exchange is over
        either way."""
        first, credential = self._first, self._credential
        if first is None:
            raise ScramError("a final message before the first")
        self._first = None
        found = _attributes(message, "c", "r", "p")
        proof = _decoded(found["p"])
        if _decoded(found["c"]) != first.header.encode():
            raise ScramError("the channel binding changed in the middle of the exchange")
        if not hmac.compare_digest(found["r"].encode(), f"{first.nonce}{self._nonce}".encode()):
            raise ScramError("the nonce of another exchange")
        known = credential or ScramCredential(b"", bytes(self._mechanism.digest_bytes), b"", ITERATIONS_MIN)
        without_proof = message.decode().rpartition(",p=")[0]
        auth_message = f"{first.bare},{self._server_first},{without_proof}".encode()
        signature = self._mechanism.hmac(known.stored_key, auth_message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        right = hmac.compare_digest(self._mechanism.hash(client_key), known.stored_key)
        if len(proof) != self._mechanism.digest_bytes or credential is None or not right:
            raise ScramError("no such user, or the password is wrong")
        return f"v={_encoded(self._mechanism.hmac(credential.server_key, auth_message))}".encode()


class ScramClient:
    """The client's side of one exchange: `first`, `final`, `finish`, once each."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped_name(user)},r={nonce}"
        self._signature = b""

    def first(self, *, token_authenticated: bool = False) -> bytes:
        """`token_authenticated`: the user is the id of a delegation token, and the password its HMAC
        (KIP-48)."""
        if token_authenticated:
            self._bare += ",tokenauth=true"
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Raises ScramError when the server answers out of order, or asks for less work than is safe."""
        found = _attributes(server_first, "r", "s", "i")
        if not found["r"].startswith(self._nonce) or len(found["r"]) == len(self._nonce):
            raise ScramError("the server's nonce does not continue the client's")
        if not found["i"].isdigit() or not ITERATIONS_MIN <= int(found["i"]) <= ITERATIONS_MAX:
            raise ScramError(f"{found['i']} iterations: from {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken")
        salted = self._mechanism.salted_password(self._password, _decoded(found["s"]), int(found["i"]))
        without_proof = f"c={_encoded(b'n,,')},r={found['r']}"
        auth_message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        client_key = self._mechanism.hmac(salted, b"Client Key")
        signature = self._mechanism.hmac(self._mechanism.hash(client_key), auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._mechanism.hmac(self._mechanism.hmac(salted, b"Server Key"), auth_message)
        return f"{without_proof},p={_encoded(proof)}".encode()

    def finish(self, server_final: bytes) -> None:
        """Raises ScramError when the server did not know the user's credential."""
        if server_final.startswith(b"e="):
            raise ScramError(f"the server refuses: {server_final[2:].decode(errors='replace')}")
        if not hmac.compare_digest(_decoded(_attributes(server_final, "v")["v"]), self._signature):
            raise ScramError(
                "the server does not know this user's credential: it is not the server that it says"
            )
