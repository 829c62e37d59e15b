"""Random clients before and within authentication: `python -m tests.security.fuzz --count 1000000`.

A case is one connection to a listener with every mechanism, and a few frames on it: right exchanges, right
ones that are changed, cut, or replayed from another connection, forged bearer tokens, nonsense, and other
requests, while time goes on.  The case knows what its client has proved.  It fails when anything but a
refusal leaves the node's code, when a request is served that the client has no session for, and when a
session is another principal's than one that the client has proved to be.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from unittest.mock import patch

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from tidegate.node.serving.authentication import Authentication, ListenerIdentity
from tidegate.node.settings.security_settings import ListenerSecurity
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.connections.listeners import SecurityProtocol
from tidegate.runtime.connections.tls import ClientAuth, TlsOptions
from tidegate.security.bearer_tokens import TokenRules, parse_key_set
from tidegate.security.delegation_tokens import DelegationToken, token_password
from tidegate.security.principals import Principal, SslPrincipalMapper
from tidegate.security.records import SecurityRecords
from tidegate.security.sasl_mechanisms import OAUTHBEARER, PLAIN
from tidegate.security.scram import ITERATIONS_MIN, ScramClient, ScramMechanism, credential_of
from tidegate.tests.grpc_access import bearer_keys
from tidegate.wire import api, codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import KafkaError

SCRAM: Final = {mechanism.mechanism_name: mechanism for mechanism in ScramMechanism}
MECHANISMS: Final = (*SCRAM, PLAIN, OAUTHBEARER)
SECRET: Final = b"the nodes' secret"
TOKEN_ID: Final = "token-of-carol"
TOKEN_LIFE_MS: Final = 36_000_000
SESSION_MS: Final = 60_000
REPLAYED_MAX: Final = 2_000
STEPS_MAX: Final = 10
RIGHT_BEGINNINGS: Final = 0.6
BY_TOKEN: Final = ("carol", "dora")
BRIEF_TOKENS: Final = 0.2
BRIEF_S: Final = 1
OTHER_REQUESTS: Final = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.END_TXN, ApiKey.DELETE_TOPICS)
AUTHENTICATE_VERSION: Final = 1


def _scram_password(name: str) -> str:
    return f"password of {name}"


@dataclass
class World:
    """One listener, and what right clients know."""

    rng: random.Random
    clock: ManualClock = field(default_factory=ManualClock)
    replayed: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=REPLAYED_MAX))
    """Mechanisms and messages of exchanges on other connections."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        begin_ms = self.clock.wall_ms()
        self.ends_at_ms = begin_ms + TOKEN_LIFE_MS
        self.key, self.other_key = (
            ec.generate_private_key(ec.SECP256R1()),
            ec.generate_private_key(ec.SECP256R1()),
        )
        jwk: dict[str, Any] = jwt.get_algorithm_by_name("ES256").to_jwk(self.key.public_key(), as_dict=True)
        keys = parse_key_set(json.dumps({"keys": [{**jwk, "kid": "k", "alg": "ES256", "use": "sig"}]}))
        credentials = {}
        for mechanism in ScramMechanism:
            salt = self.rng.randbytes(16)
            salted = mechanism.salted_password(_scram_password("alice"), salt, ITERATIONS_MIN)
            credentials["alice", mechanism] = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        carol = Principal("User", "carol")
        token = DelegationToken(
            TOKEN_ID, carol, carol, (), begin_ms, begin_ms + TOKEN_LIFE_MS, begin_ms + TOKEN_LIFE_MS
        )
        records = SecurityRecords(scram=credentials, tokens={TOKEN_ID: token})
        security = ListenerSecurity(
            name="SASL_PLAINTEXT", protocol=SecurityProtocol.SASL_PLAINTEXT, tls=None,
            client_auth=ClientAuth.NONE, options=TlsOptions(), mapper=SslPrincipalMapper("DEFAULT"),
            mechanisms=MECHANISMS, passwords={"bob": "b o b"}, max_reauth_ms=SESSION_MS, failure_delay_s=0,
            token_bytes_max=524_288,
        )  # fmt: skip
        rules = TokenRules(audiences=frozenset({"tidegate"}), issuer="issuer", clock_skew_s=0)
        self.identity = ListenerIdentity(
            security, clock=self.clock, records=lambda: records, token_secret=SECRET,
            bearer=bearer_keys(rules, keys),
        )  # fmt: skip
        self.bearer = self.signed({}, self.key)
        self.forged = self._forged()

    def signed(self, changes: dict[str, Any], key: Any, kid: str = "k") -> str:
        now_s = self.clock.wall_ms() // 1000
        claims = {
            "sub": "dora", "exp": now_s + TOKEN_LIFE_MS // 1000, "iat": now_s, "aud": ["tidegate"],
            "iss": "issuer",
        }  # fmt: skip
        return jwt.encode({**claims, **changes}, key, algorithm="ES256", headers={"kid": kid})

    def _forged(self) -> list[str]:
        now_s = self.clock.wall_ms() // 1000
        header, claims, signature = self.bearer.split(".")
        unsigned = jwt.utils.base64url_encode(b'{"alg":"none","kid":"k"}').decode()
        symmetric = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"k"}').decode()
        return [
            f"{unsigned}.{claims}.", f"{unsigned}.{claims}.{signature}",
            f"{symmetric}.{claims}.{signature}",
            f"{header}.{claims}.",
            self.signed({}, self.other_key), self.signed({}, self.key, kid="unknown"),
            self.signed({"aud": ["another"]}, self.key), self.signed({"iss": "another"}, self.key),
            self.signed({"exp": now_s - 10}, self.key), self.signed({"nbf": now_s + 10_000_000}, self.key),
            self.signed({"sub": ""}, self.key), self.signed({"sub": None}, self.key),
        ]  # fmt: skip


class Case:
    """One connection, as the listener treats it (`node/serving/listener.py`)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.authentication = Authentication(world.identity, None)
        self.is_closed = False
        self.proved: set[str] = set()
        """Names of users whose secret this client has used on this connection."""
        self.exchange: Generator[bytes, bytes, None] | None = None
        self.expected: bytes | None = None
        """The right next message of the exchange."""
        self.mechanism = ""
        self.ends_at_ms = 0
        self.bearer, self.token_ends_at_ms = world.bearer, world.ends_at_ms

    # --- the node's side ------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> bytes | None:
        """The node's token, if it answers with one; afterwards the connection may be closed."""
        try:
            return self._serve(frame)
        except KafkaError:
            self.is_closed = True
            return None

    def _serve(self, frame: bytes) -> bytes | None:
        authentication = self.authentication
        if not authentication.is_over and len(frame) > authentication.frame_bytes_max:
            self.is_closed = True
            return None
        if authentication.takes_raw_tokens:
            return self._authenticated(frame)
        header, position = codec.parse_request_header(frame)
        if authentication.refuses(header.api_key) is not None:
            self.is_closed = True
            return None
        if not api.is_supported(header.api_key, header.api_version):
            self.is_closed = header.api_key != ApiKey.API_VERSIONS
            return None
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            body = codec.decode_request_body(header.api_key, header.api_version, frame, position)
            return self._replied(authentication.handshake(body.mechanism, header.api_version))
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            body = codec.decode_request_body(header.api_key, header.api_version, frame, position)
            return self._authenticated(body.auth_bytes)
        if header.api_key != ApiKey.API_VERSIONS:
            self._served()
        return None

    def _authenticated(self, token: bytes) -> bytes | None:
        had_session = self.authentication.is_over
        answer = self._replied(self.authentication.authenticate(token))
        if self.authentication.is_over and not had_session:
            self.ends_at_ms = self.world.clock.wall_ms() + SESSION_MS
            if self.authentication.principal.name in BY_TOKEN:
                self.ends_at_ms = min(self.ends_at_ms, self.token_ends_at_ms)
        return answer

    def _replied(self, reply: Any) -> bytes | None:
        if self.authentication.failure or reply is None:
            self.is_closed = True
            return None
        token: bytes = reply.token
        return token

    def _served(self) -> None:
        principal = self.authentication.principal
        assert principal.name in self.proved, f"{principal} is served, and has not proved who it is"
        assert self.world.clock.wall_ms() < self.ends_at_ms, f"{principal} is served after its session"
        self.world.counts["requests served within a session"] += 1

    # --- the client's side ----------------------------------------------------------------------------------

    def run(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.begin, 6), (self.go_on, 10), (self.go_on_changed, 3), (self.replay, 3), (self.forge, 2),
            (self.ask, 4), (self.nonsense, 2), (self.wait, 2),
        ]  # fmt: skip
        actions, weights = zip(*steps, strict=True)
        todo: list[Callable[[], None]] = []
        if self.rng.random() < RIGHT_BEGINNINGS:
            todo = [self.begin, *[self.go_on] * self.rng.randint(1, 2)]
        for _ in range(self.rng.randint(1, STEPS_MAX)):
            (todo.pop(0) if todo else self.rng.choices(actions, weights)[0])()
            self.check()
            if self.is_closed:
                break

    def check(self) -> None:
        if self.authentication.is_over:
            name = self.authentication.principal.name
            assert name in self.proved, f"a session of {name}, who has not been proved"

    def begin(self) -> None:
        """A handshake, and the first message in mind."""
        self.token_ends_at_ms = self.world.ends_at_ms
        self.mechanism = self.rng.choice(MECHANISMS)
        version = self.rng.randint(0, 1)
        self.receive(self._frame(ApiKey.SASL_HANDSHAKE, version, {"mechanism": self.mechanism}))
        self.exchange = self._right_exchange()
        self.expected = next(self.exchange)

    def _right_exchange(self) -> Generator[bytes, bytes, None]:
        if self.mechanism == PLAIN:
            self.proved.add("bob")
            yield b"\0bob\0b o b"
        elif self.mechanism == OAUTHBEARER:
            self.proved.add("dora")
            if self.rng.random() < BRIEF_TOKENS:
                now_s = self.world.clock.wall_ms() // 1000
                self.bearer = self.world.signed({"exp": now_s + BRIEF_S}, self.world.key)
                self.token_ends_at_ms = (now_s + BRIEF_S) * 1000
            yield f"n,,\x01auth=Bearer {self.bearer}\x01\x01".encode()
        else:
            is_token = self.rng.random() < 0.5
            name = TOKEN_ID if is_token else "alice"
            password = token_password(SECRET, TOKEN_ID) if is_token else _scram_password("alice")
            nonce = f"{self.rng.getrandbits(96):x}"
            client = ScramClient(SCRAM[self.mechanism], name, password, nonce)
            challenge = yield client.first(token_authenticated=is_token)
            final = client.final(challenge)
            self.proved.add("carol" if is_token else name)
            yield final

    def go_on(self) -> None:
        """The right next message."""
        if self.exchange is None or self.expected is None:
            return
        self.world.replayed.append((self.mechanism, self.expected))
        answer = self._send(self.expected)
        self.expected = None
        if answer and not self.is_closed:
            try:
                self.expected = self.exchange.send(answer)
            except StopIteration:
                self.exchange = None
        if self.authentication.is_over:
            self.world.counts[f"sessions by {self.mechanism}"] += 1

    def go_on_changed(self) -> None:
        if not self.expected:
            return
        changed, had_session = self._changed(self.expected), self.authentication.is_over
        self._send(changed)
        if self.authentication.is_over and not had_session:
            assert self._proves_the_same(changed, self.expected), f"{changed!r} for {self.expected!r}"

    def _proves_the_same(self, changed: bytes, right: bytes) -> bool:
        """Some bytes are the client's to choose, and base64 has several forms."""
        if self.mechanism == PLAIN:
            return changed.endswith(b"\0bob\0b o b")
        if self.mechanism == OAUTHBEARER:
            return self.bearer.rpartition(".")[0].encode() in changed
        (text, _, proof), (right_text, _, right_proof) = (
            each.rpartition(b",p=") for each in (changed, right)
        )
        return text == right_text and b64decode(proof) == b64decode(right_proof)

    def replay(self) -> None:
        """What another connection sent, or a part of it: its secret is none that this client knows."""
        if not self.world.replayed:
            return
        mechanism, message = self.rng.choice(self.world.replayed)
        if mechanism in SCRAM:  # a password and a bearer token are their own proof
            self._send(message[: self.rng.randint(0, len(message))] if self.rng.random() < 0.3 else message)

    def forge(self) -> None:
        self._send(f"n,,\x01auth=Bearer {self.rng.choice(self.world.forged)}\x01\x01".encode())

    def ask(self) -> None:
        key = self.rng.choice(OTHER_REQUESTS)
        spec = api.TABLE[key]
        version = self.rng.randint(spec.low, spec.high)
        self.receive(
            codec.request_header(key, version, 1, "fuzz") + self.rng.randbytes(self.rng.randint(0, 20))
        )

    def nonsense(self) -> None:
        frame = self.rng.randbytes(self.rng.randint(0, 60))
        if self.rng.random() < 0.5:
            frame = self._changed(self._frame(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": PLAIN}))
        self.receive(frame)

    def wait(self) -> None:
        """Sessions end, and clients authenticate again (KIP-368)."""
        self.world.clock.advance(self.rng.choice((0.5, 2.0, 2.0 * SESSION_MS / 1000)))

    def _send(self, token: bytes) -> bytes | None:
        if self.authentication.takes_raw_tokens:
            return self.receive(token)
        return self.receive(
            self._frame(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, {"auth_bytes": token})
        )

    def _frame(self, key: ApiKey, version: int, fields: dict[str, object]) -> bytes:
        return codec.encode_request_frame(1, key, version, codec.request(key, version, fields), "fuzz")

    def _changed(self, message: bytes) -> bytes:
        changed, rng = bytearray(message), self.rng
        match rng.randint(0, 4):
            case 0:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randint(0, 7)
            case 1:
                del changed[rng.randint(0, len(changed) - 1) :]
            case 2:
                at = rng.randrange(len(changed))
                changed[at:at] = rng.choice((b",", b"=", b"\0", b"\x01", b"\xff", b"n=root,", b"a=root,"))
            case 3:
                changed = changed * 2
            case _:
                return (
                    message.replace(b"alice", b"root").replace(b"bob", b"root").replace(b"n,,", b"y,a=root,")
                )
        return bytes(changed)


def run(count: int, seed: int) -> Counter[str]:
    """Runs the cases; what they came to.  Raises AssertionError, or whatever left the node's code."""
    # salting a password costs milliseconds, and there are few salts
    with patch.object(ScramMechanism, "salted_password", cache(ScramMechanism.salted_password)):
        return _run(count, seed)


def _run(count: int, seed: int) -> Counter[str]:
    world: World | None = None
    counts: Counter[str] = Counter()
    rng = random.Random(seed)
    for number in range(count):
        if world is None or world.clock.monotonic() > TOKEN_LIFE_MS / 1000:
            if world is not None:
                counts += world.counts
            world = World(rng)  # its tokens have ended
        case = Case(world)
        try:
            case.run()
        except Exception as error:
            raise AssertionError(f"case {number} of seed {seed}: {error!r}") from error
        counts["connections closed"] += case.is_closed
    if world is not None:
        counts += world.counts
    counts["cases"] = count
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    counts = run(options.count, options.seed)
    for what, number in sorted(counts.items()):
        print(f"{number:9,} {what}")
    print(f"no crash, and no request served without a session, in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
