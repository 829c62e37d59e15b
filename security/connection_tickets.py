"""Tickets: what a client that is known on one connection shows to be known on a second one.

A ticket holds once, for some seconds, and from the address of the client that was given it.  The node keeps
digests alone, of so many tickets as it has room for.  Pure: the times and the randomness are given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from .session_tokens import random_token, token_digest

TICKET_S: Final = 10.0
TICKETS_MAX: Final = 4_096

Client = TypeVar("Client")


class ConnectionTickets(Generic[Client]):
    """See the module's text."""

    def __init__(
        self,
        *,
        tickets_max: int = TICKETS_MAX,
        ticket_s: float = TICKET_S,
        new_ticket: Callable[[], str] = random_token,
    ) -> None:
        self._tickets_max = tickets_max
        self._ticket_s = ticket_s
        self._new_ticket = new_ticket
        self._issued: OrderedDict[bytes, tuple[Client, str, float]] = OrderedDict()
        """By digest: whose, from where, and until when; the oldest first."""

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, client: Client, address: str, now: float) -> bytes:
        """A ticket of this client, from this address."""
        while self._issued and (len(self._issued) >= self._tickets_max or self._first_end() <= now):
            self._issued.popitem(last=False)
        ticket = self._new_ticket()
        self._issued[token_digest(ticket)] = client, address, now + self._ticket_s
        return ticket.encode()

    def redeem(self, ticket: bytes, address: str, now: float) -> Client | None:
        """Whose ticket it is, which then holds no more; None when it does not hold."""
        client, issued_to, ends_at = self._issued.pop(token_digest(ticket.decode("latin-1")), (None, "", 0.0))
        return client if now < ends_at and address == issued_to else None

    def _first_end(self) -> float:
        return next(iter(self._issued.values()))[2]
