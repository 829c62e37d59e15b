"""The keys that sign bearer tokens (`sasl.oauthbearer.jwks.endpoint.url`): those of a file that another
program keeps fresh, or of an HTTPS endpoint of the tokens' issuer (KIP-768).

`KeySet` reads its source on a task of its own, and the answer is parsed in a thread: no client waits for it.
A source that cannot be read changes nothing: the keys of before count on, and the source is read again after
a time that doubles.  The first attempt is over before the node's Kafka listeners open.  When it fails, a node
does not start with a file, which is its operator's; an endpoint may be away for a while, and until it answers
the clients that show a token are refused.

A token that names an unknown key asks for an early attempt.  Clients can make up names of keys, so there are
`EARLY_S` between the beginnings of an attempt and of an early one after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import jwt
from prometheus_client.core import GaugeMetricFamily

from ...runtime import logs
from ...runtime.clock import Clock, until_next
from ...runtime.connections.tls import ClientTls, TlsError, TlsFiles
from ...runtime.disk import Disk
from ...runtime.http import ask
from ...runtime.network import tls_reason
from ...runtime.tasks import spawn
from ...security.bearer_tokens import KeySetError, TokenRules, UnknownKey, parse_key_set
from ...security.sasl import Identity
from ...security.sasl_mechanisms import TokenRefused
from ..settings.security_settings import HttpsUrl

log = logs.get(__name__)

EARLY_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 1 << 20
FETCH_S_MAX: Final = 5.0
"""For a whole answer, from the search for the host's address on."""
FILE_INTERVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """When a source is read again."""

    refresh_s: float
    """After it was read."""
    retry_s: float
    """After a first failure; twice as long after each further one."""
    retry_s_max: float


OF_A_FILE: Final = ReadTimes(refresh_s=FILE_INTERVAL_S, retry_s=FILE_INTERVAL_S, retry_s_max=FILE_INTERVAL_S)


class KeySetSource(Protocol):
    """Its text, `str(source)`, stands in the log."""

    @property
    def is_required(self) -> bool:
        """Whether the node cannot start without it."""

    async def read(self) -> bytes:
        """Raises OSError, KeySetError."""


@dataclass(frozen=True, slots=True)
class KeySetFile:
    """`file:///path`."""

    path: Path
    disk: Disk
    is_required: bool = True

    def __str__(self) -> str:
        return str(self.path)

    async def read(self) -> bytes:
        return await asyncio.to_thread(self.disk.read, self.path)


@dataclass(frozen=True, slots=True)
class KeySetEndpoint:
    """`https://host/path`.  The authorities are those of the system, as they are at each attempt."""

    url: HttpsUrl
    timeout_s: float = FETCH_S_MAX
    is_required: bool = False

    def __str__(self) -> str:
        return str(self.url)

    async def read(self) -> bytes:
        url = self.url
        try:
            tls = await asyncio.to_thread(ClientTls, TlsFiles())
            answer = await ask(
                url.host, url.port, url.target, self.timeout_s, bytes_max=ANSWER_BYTES_MAX, tls=tls.newest
            )
        except TlsError as error:
            raise KeySetError(str(error)) from error
        if 300 <= answer.status < 400:
            raise KeySetError(f"the answer is {answer.status}: no redirection is followed")
        if answer.status != 200:
            raise KeySetError(f"the answer is {answer.status}")
        return answer.body


class KeySet:
    """See the module's text.  Used on the node's loop."""

    def __init__(
        self,
        source: KeySetSource | None,
        times: ReadTimes,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`source`: None: none is configured, and there are no keys.  `on_failure(error)`: a defect ended the
        task; the keys would never change again."""
        self.source = source
        self.keys: Mapping[str, jwt.PyJWK] = {}
        """Key id -> key."""
        self.read_at_ms = 0
        """When the source was read last; 0: never."""
        self._times = times
        self._clock = clock
        self._on_failure = on_failure
        self._text = b""
        self._retry_s = times.retry_s
        self._begun_s = self._due_s = clock.monotonic()
        self._due_changed = asyncio.Event()
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns after the first attempt.  Raises OSError, KeySetError for a source that is required."""
        if self.source is None:
            return
        error = await self._attempt(self.source)
        if error is not None and self.source.is_required:
            raise error
        self._task = spawn(self._run(self.source), "key set", self._on_failure)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def ask_early(self) -> None:
        """A token names a key that is not there."""
        due_s = self._begun_s + EARLY_S
        if due_s < self._due_s:
            self._due_s = due_s
            self._due_changed.set()

    async def _run(self, source: KeySetSource) -> None:
        while True:
            left_s = self._due_s - self._clock.monotonic()
            if left_s <= 0:
                await self._attempt(source)
                continue
            self._due_changed.clear()
            timer = self._clock.call_later(left_s, self._due_changed.set)
            try:
                await self._due_changed.wait()
            finally:
                timer.cancel()

    async def _attempt(self, source: KeySetSource) -> OSError | KeySetError | None:
        """Why the source cannot be read."""
        self._begun_s, is_new = self._clock.monotonic(), False
        try:
            text = await source.read()
            if text != self._text:
                self.keys, self._text = await asyncio.to_thread(parse_key_set, text), text
                is_new = True
        except (OSError, KeySetError) as error:
            self._failed(source, error)
            return error
        if is_new or self._said:
            log.info("key_set_read", source=str(source), keys=len(self.keys))
        self.read_at_ms, self._said = self._clock.wall_ms(), ""
        self._retry_s = self._times.retry_s
        now_s = self._clock.monotonic()
        self._due_s = now_s + until_next(now_s, self._times.refresh_s)
        return None

    def _failed(self, source: KeySetSource, error: OSError | KeySetError) -> None:
        reason = tls_reason(error) if isinstance(error, OSError) else str(error)
        if reason != self._said:
            self._said = reason
            consequence = "the keys of before count on" if self.keys else "no bearer token is accepted"
            log.warning("key_set_not_read", source=str(source), reason=reason, consequence=consequence)
        self._due_s = self._clock.monotonic() + min(self._retry_s, self._times.retry_s_max)
        self._retry_s = min(2 * self._retry_s, self._times.retry_s_max)


@dataclass(frozen=True, slots=True)
class BearerKeys:
    """The rules for bearer tokens, and the keys that sign them."""

    rules: TokenRules
    key_set: KeySet

    def identity(self, token: str, now_ms: int) -> Identity:
        """Raises TokenRefused."""
        if not self.key_set.keys:
            raise TokenRefused(f"no key set has been read yet ({self.key_set.source})")
        try:
            return self.rules.identity(token, self.key_set.keys, now_ms)
        except UnknownKey:
            self.key_set.ask_early()
            raise


class KeySetCollector:
    """A gauge that says how old the keys are."""

    def __init__(self, key_set: KeySet) -> None:
        self._key_set = key_set

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tidegate_key_set_read_timestamp_seconds",
            "When the keys of bearer tokens were read last, seconds since 1970; 0: never.",
        )
        if self._key_set.source is not None:
            family.add_metric([], self._key_set.read_at_ms / 1000)
        yield family
