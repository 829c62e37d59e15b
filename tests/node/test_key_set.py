"""The keys of bearer tokens are read again and again, from a file or an HTTPS endpoint, and a source that
cannot be read changes nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tidegate.node.serving.key_set import (
    ANSWER_BYTES_MAX,
    EARLY_S,
    FILE_INTERVAL_S,
    OF_A_FILE,
    BearerKeys,
    KeySet,
    KeySetCollector,
    KeySetEndpoint,
    KeySetFile,
    KeySetSource,
    ReadTimes,
)
from tidegate.node.settings.security_settings import (
    KEY_SET_URL,
    HttpsUrl,
    SecuritySettingError,
    key_set_location,
)
from tidegate.runtime.clock import ManualClock
from tidegate.runtime.disk import RealDisk
from tidegate.security.bearer_tokens import KeySetError, TokenRules
from tidegate.security.sasl_mechanisms import TokenRefused
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

KEY = ec.generate_private_key(ec.SECP256R1())
TIMES = ReadTimes(refresh_s=3600, retry_s=0.1, retry_s_max=1)


def key_set_text(*ids: str) -> bytes:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    return json.dumps({"keys": [public | {"kid": each, "use": "sig"} for each in ids]}).encode()


def token(key_id: str) -> str:
    return jwt.encode({"sub": "alice", "exp": 2**39}, KEY, "ES256", headers={"kid": key_id})


@dataclass
class Scripted:
    """A source whose next answer a test gives."""

    outcome: bytes | OSError = b""
    is_required: bool = False
    reads: int = 0

    async def read(self) -> bytes:
        self.reads += 1
        if isinstance(self.outcome, OSError):
            raise self.outcome
        return self.outcome


def of(source: KeySetSource, clock: ManualClock, times: ReadTimes = TIMES) -> KeySet:
    def defect(error: BaseException) -> None:
        raise error

    return KeySet(source, times, clock, defect)


async def after(advance_s: float, clock: ManualClock, keys: KeySet) -> None:
    """Returns when the attempts that are due then are over."""
    clock.advance(advance_s)
    await eventually(lambda: keys._due_s > clock.monotonic())


async def read_count(keys: KeySet, clock: ManualClock, advance_s: float, expected: int) -> None:
    """After so long the source was read so often."""
    await after(advance_s, clock, keys)
    assert isinstance(keys.source, Scripted)
    assert keys.source.reads == expected


# ---- when the source is read -------------------------------------------------------------------------------


async def test_a_source_is_read_each_interval_and_after_failures_with_backoff() -> None:
    clock, source = ManualClock(), Scripted(key_set_text("a"))
    keys = of(source, clock)
    await keys.start()
    assert (source.reads, set(keys.keys)) == (1, {"a"})
    await read_count(keys, clock, 3599, 1)
    source.outcome = OSError("away")
    await read_count(keys, clock, 1, 2)
    for number, wait_s in enumerate((0.1, 0.2, 0.4, 0.8, 1, 1, 1), 3):
        await read_count(keys, clock, wait_s - 0.01, number - 1)
        await read_count(keys, clock, 0.02, number)
    assert set(keys.keys) == {"a"}, "the keys of before count on"
    source.outcome = key_set_text("b")
    await read_count(keys, clock, 1.01, 10)
    assert set(keys.keys) == {"b"}
    source.outcome = OSError("away")
    await read_count(keys, clock, 3600, 11)
    await read_count(keys, clock, 0.11, 12)  # the backoff begins anew
    await keys.stop()


async def test_an_unknown_key_asks_early_and_made_up_keys_do_so_seldom() -> None:
    clock, source = ManualClock(), Scripted(key_set_text("old"))
    bearer = BearerKeys(TokenRules(), of(source, clock))
    await bearer.key_set.start()
    source.outcome = key_set_text("old", "new")
    for number in range(100):
        with pytest.raises(TokenRefused, match="no key of the key set"):
            bearer.identity(token(f"made-up-{number}"), clock.wall_ms())
    await read_count(bearer.key_set, clock, EARLY_S - 0.01, 1)
    await read_count(bearer.key_set, clock, 0.02, 2)
    assert bearer.identity(token("new"), clock.wall_ms()).principal.name == "alice"
    await read_count(bearer.key_set, clock, 10 * EARLY_S, 2)  # a known key asks for nothing
    with pytest.raises(TokenRefused):
        bearer.identity(token("later"), clock.wall_ms())
    await read_count(bearer.key_set, clock, 0, 3)  # the last attempt is long ago
    await bearer.key_set.stop()


async def test_a_token_that_is_bad_otherwise_asks_for_nothing() -> None:
    clock, source = ManualClock(), Scripted(key_set_text("a"))
    bearer = BearerKeys(TokenRules(), of(source, clock))
    await bearer.key_set.start()
    for bad in (token("a")[:-8], "", "a.b.c", jwt.encode({"sub": "x"}, KEY, "ES256", headers={"kid": "a"})):
        with pytest.raises(TokenRefused):
            bearer.identity(bad, clock.wall_ms())
    await read_count(bearer.key_set, clock, 2 * EARLY_S, 1)
    await bearer.key_set.stop()


async def test_a_node_without_keys_refuses_tokens_until_the_source_answers() -> None:
    clock, source = ManualClock(), Scripted(OSError("connection refused"))
    bearer = BearerKeys(TokenRules(), of(source, clock))
    collector = KeySetCollector(bearer.key_set)
    await bearer.key_set.start()
    with pytest.raises(TokenRefused, match="no key set has been read yet"):
        bearer.identity(token("a"), clock.wall_ms())
    assert [each.value for family in collector.collect() for each in family.samples] == [0]
    source.outcome = key_set_text("a")
    await after(0.1, clock, bearer.key_set)
    assert bearer.identity(token("a"), clock.wall_ms()).principal.name == "alice"
    samples = [each.value for family in collector.collect() for each in family.samples]
    assert samples == [clock.wall_ms() / 1000]
    await bearer.key_set.stop()


async def test_nothing_is_read_after_the_stop() -> None:
    clock, source = ManualClock(), Scripted(key_set_text("a"))
    keys = of(source, clock)
    await keys.start()
    await keys.stop()
    keys.ask_early()
    clock.advance(10_000)
    for _ in range(10):
        await asyncio.sleep(0)
    assert source.reads == 1


# ---- a file ------------------------------------------------------------------------------------------------


async def test_keys_are_replaced_in_two_steps_and_never_lost(tmp_path: Path) -> None:
    path, clock = tmp_path / "jwks.json", ManualClock()
    path.write_bytes(key_set_text("old"))
    keys = of(KeySetFile(path, RealDisk()), clock, OF_A_FILE)
    await keys.start()
    for text, ids in (
        (key_set_text("old"), {"old"}),
        (key_set_text("old", "new"), {"old", "new"}),
        (b"{", {"old", "new"}),
        (None, {"old", "new"}),
        (key_set_text("new"), {"new"}),
    ):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_bytes(text)
        await after(FILE_INTERVAL_S, clock, keys)
        assert set(keys.keys) == ids
    await keys.stop()


async def test_a_faulty_file_stops_a_start(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    for name, error in (("jwks.json", KeySetError), ("absent", FileNotFoundError)):
        with pytest.raises(error):
            await of(KeySetFile(tmp_path / name, RealDisk()), ManualClock(), OF_A_FILE).start()


# ---- an endpoint -------------------------------------------------------------------------------------------


@dataclass
class Endpoint:
    """An HTTPS server on loopback that answers with `answer`; then it closes, if it `closes`."""

    port: int
    answer: bytes = b""
    closes: bool = True
    heads: list[bytes] = field(default_factory=list)

    def source(self, host: str = "127.0.0.1", timeout_s: float = 30.0) -> KeySetEndpoint:
        return KeySetEndpoint(HttpsUrl(host, self.port, "/keys", "p=secret"), timeout_s)


Trust = Callable[[Authority], None]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Makes an authority the system's only one."""

    def only(authority: Authority) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        monkeypatch.setenv("SSL_CERT_DIR", str(authority.folder / "none"))

    return only


@pytest.fixture
async def endpoint(tmp_path: Path, trust: Trust) -> AsyncIterator[Endpoint]:
    authority = Authority(tmp_path)
    trust(authority)
    files = authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.certificate), str(files.key))
    served = Endpoint(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(served.answer)
        if served.closes:
            writer.close()
        else:
            await reader.read()  # until the client goes
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    served.port = server.sockets[0].getsockname()[1]
    yield served
    server.close()


def whole(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:]))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("encoded", [whole, chunked])
async def test_an_endpoint_is_asked_over_https(endpoint: Endpoint, encoded: Callable[[bytes], bytes]) -> None:
    endpoint.answer = encoded(key_set_text("a"))
    keys = of(endpoint.source(), ManualClock())
    await keys.start()
    assert set(keys.keys) == {"a"}
    lines = endpoint.heads[0].decode().split("\r\n")
    assert lines[:2] == ["GET /keys?p=secret HTTP/1.1", f"Host: 127.0.0.1:{endpoint.port}"]
    await keys.stop()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (whole(b"", "302 Found", "Location: http://127.0.0.1/keys"), "302: no redirection is followed"),
        (whole(b"", "301 Moved", "Location: https://127.0.0.1/keys"), "301: no redirection is followed"),
        (whole(key_set_text("a"), "500 Oh"), "the answer is 500"),
        (whole(key_set_text("a"))[:-1], "no whole HTTP: IncompleteRead"),
        (chunked(key_set_text("a"))[:-20], "no whole HTTP: IncompleteRead"),
        (b"", "no whole HTTP: RemoteDisconnected"),
        (b"SSH-2.0\r\n", "no whole HTTP: BadStatusLine"),
        (whole(bytes(ANSWER_BYTES_MAX + 1)), "more than 1048576 bytes"),
        (whole(b"[" * 500_000), "no JSON Web Key Set"),
        (whole(b'{"keys": []}'), "no public key"),
    ],
    ids=["to-http", "to-https", "error", "cut", "cut-chunk", "nothing", "no-http", "large", "deep", "empty"],
)
async def test_an_answer_that_cannot_be_used_changes_nothing(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture, answer: bytes, reason: str
) -> None:
    endpoint.answer = whole(key_set_text("a"))
    clock = ManualClock()
    keys = of(endpoint.source(), clock)
    await keys.start()
    endpoint.answer = answer
    error = await keys._attempt(endpoint.source())
    assert reason in str(error)
    assert set(keys.keys) == {"a"}
    assert "key_set_not_read" in caplog.text
    assert "secret" not in str([vars(record) for record in caplog.records])
    await keys.stop()


async def test_an_endless_answer_ends_with_the_bound_on_time(endpoint: Endpoint) -> None:
    endpoint.answer, endpoint.closes = whole(key_set_text("a"))[:-1], False
    with pytest.raises(TimeoutError, match=r"no whole answer within 0\.1 s"):
        await endpoint.source(timeout_s=0.1).read()
    endpoint.answer = bytes(2 * ANSWER_BYTES_MAX)
    with pytest.raises(OSError, match="more than"):
        await endpoint.source().read()


async def test_an_endpoint_that_is_away_stops_no_start(endpoint: Endpoint) -> None:
    away = KeySetEndpoint(HttpsUrl("127.0.0.1", 1, "/keys"))
    keys = of(away, ManualClock())
    await keys.start()
    assert not keys.keys
    await keys.stop()


async def test_the_endpoint_proves_its_name_by_the_systems_authorities(
    endpoint: Endpoint, trust: Trust, tmp_path: Path
) -> None:
    endpoint.answer = whole(key_set_text("a"))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await endpoint.source("localhost").read()
    trust(Authority(tmp_path / "others", "others"))
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        await endpoint.source().read()
    assert not endpoint.heads


# ---- the setting -------------------------------------------------------------------------------------------


def location(url: str) -> object:
    return key_set_location({KEY_SET_URL: url})


def test_where_the_keys_are() -> None:
    assert location("") is None
    assert location("file:///etc/jwks.json") == Path("/etc/jwks.json")
    assert location("https://issuer.example.com") == HttpsUrl("issuer.example.com", 443, "/")
    url = location("HTTPS://[::1]:8443/keys?p=secret")
    assert url == HttpsUrl("::1", 8443, "/keys", "p=secret")
    assert str(url) == "https://[::1]:8443/keys"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1/keys", "sign tokens of any user"),
        ("HTTP://issuer/keys", "sign tokens of any user"),
        ("ftp://issuer/keys", "write file:///path"),
        ("issuer/keys", "write file:///path"),
        ("file://jwks.json", "write file:///path"),
        ("https://", "write file:///path"),
        ("https://issuer:99999/keys", "no URL"),
        ("https://issuer:0/keys", "cannot hold"),
        ("https://[::1/keys", "no URL"),
        ("https://user:secret@issuer/keys", "no user"),
        ("https://issuer/keys#secret", "no fragment"),
        ("https://issuer/keys\r\nX: secret", "cannot hold"),
        ("https://issuer/se cret", "cannot hold"),
        ("https://issuer/sécret", "cannot hold"),
        (f"https://{'i' * 300}/keys", "300 characters"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, reason: str) -> None:
    with pytest.raises(SecuritySettingError, match=reason) as caught:
        location(url)
    assert "secret" not in str(caught.value)
