"""A broker as it was before: one heartbeat at a time, given up after its interval.  A simulation shows what
that costs."""

from __future__ import annotations

import asyncio

from ....node.lifecycle.broker_lifecycle import BrokerLifecycle


class SingleHeartbeats(BrokerLifecycle):
    """An answer that comes later than an interval is dropped, although it could still extend the session."""

    async def _heartbeat_forever(self) -> None:
        while True:
            sent_at = self._clock.monotonic()
            self._send(sent_at)
            (only,) = self._in_flight.values()
            done, _pending = await asyncio.wait([only], timeout=max(self._interval_s, 0.5))
            if not done:
                only.cancel()
                await asyncio.wait([only])
            await self._wait_until_due(sent_at)
