"""Certificates are read again while the node runs: when one of their files changes, connections from then on
are made with the new ones.

Files that do not fit together, have expired or are another node's change nothing: the node goes on with those
that it has, and says so once.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client.core import GaugeMetricFamily

from ...runtime import logs
from ...runtime.clock import Clock, until_next
from ...runtime.connections.tls import TlsError
from ...runtime.tasks import spawn

log = logs.get(__name__)

LOOK_INTERVAL_S: Final = 2.0


class Certificates(Protocol):
    """In files: `MutualTls`, `ServerTls`."""

    def reload(self) -> bool:
        """Whether the files changed and are used from now on.  Raises TlsError."""

    @property
    def not_after(self) -> datetime.datetime:
        """When the own certificate expires."""


@dataclass(frozen=True, slots=True)
class Renewable:
    certificates: Certificates
    on_renewed: Callable[[], Awaitable[None]] | None = None


class ExpiryCollector:
    """A gauge that says when each of them expires."""

    def __init__(self, renewables: Mapping[str, Renewable]) -> None:
        self._renewables = renewables

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "tidegate_certificate_expiry_timestamp_seconds",
            "When a certificate of the node expires, seconds since 1970; `of`: a listener, or the nodes.",
            labels=["of"],
        )
        for name, each in self._renewables.items():
            family.add_metric([name], each.certificates.not_after.timestamp())
        yield family


class CertificateRenewal:
    """See the module's text."""

    def __init__(
        self,
        renewables: Mapping[str, Renewable],
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`renewables`: by what they are for, in words of the log.  `on_failure(error)`: a defect ended the
        task; no certificate would be renewed any more."""
        self._renewables = renewables
        self._clock = clock
        self._on_failure = on_failure
        self._said: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._renewables:
            self._task = spawn(self._run(), "certificates", self._on_failure)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(until_next(self._clock.monotonic(), LOOK_INTERVAL_S))
            for name, each in self._renewables.items():
                await self._look(name, each)

    async def _look(self, name: str, renewable: Renewable) -> None:
        try:
            if not await asyncio.to_thread(renewable.certificates.reload):
                return
        except TlsError as error:
            if self._said.get(name) != str(error):
                self._said[name] = str(error)
                log.warning("certificates_not_renewed", of=name, reason=error)
            return
        self._said.pop(name, None)
        log.info("certificates_renewed", of=name, not_after=renewable.certificates.not_after.isoformat())
        if renewable.on_renewed is not None:
            await renewable.on_renewed()
