"""A ticket holds once, for a while, from one address."""

from __future__ import annotations

from tidegate.security.connection_tickets import ConnectionTickets


def test_a_ticket_is_redeemed_once() -> None:
    tickets: ConnectionTickets[str] = ConnectionTickets()
    ticket = tickets.issue("alice", "10.0.0.7", 0.0)
    assert tickets.redeem(ticket, "10.0.0.7", 1.0) == "alice"
    assert tickets.redeem(ticket, "10.0.0.7", 1.0) is None


def test_a_ticket_ends_after_its_time_and_with_a_foreign_address() -> None:
    tickets: ConnectionTickets[str] = ConnectionTickets(ticket_s=10.0)
    assert tickets.redeem(tickets.issue("alice", "10.0.0.7", 0.0), "10.0.0.7", 10.0) is None
    stolen = tickets.issue("alice", "10.0.0.7", 0.0)
    assert tickets.redeem(stolen, "10.0.0.8", 1.0) is None
    assert tickets.redeem(stolen, "10.0.0.7", 1.0) is None, "who tries another's ticket ends it"


def test_what_is_no_ticket_is_refused() -> None:
    tickets: ConnectionTickets[str] = ConnectionTickets()
    tickets.issue("alice", "10.0.0.7", 0.0)
    for other in (b"", b"\xff\x00", b"x" * 10_000):
        assert tickets.redeem(other, "10.0.0.7", 1.0) is None


def test_tickets_are_bounded_and_those_that_ended_go() -> None:
    tickets: ConnectionTickets[str] = ConnectionTickets(tickets_max=3, ticket_s=10.0)
    first, *others = [tickets.issue("alice", "10.0.0.7", now) for now in (0.0, 1.0, 2.0, 3.0)]
    assert len(tickets) == 3
    assert tickets.redeem(first, "10.0.0.7", 3.0) is None
    tickets.issue("bob", "10.0.0.7", 12.5)
    assert len(tickets) == 2, "two have ended"
    assert tickets.redeem(others[-1], "10.0.0.7", 12.5) == "alice"


def test_no_two_tickets_are_the_same() -> None:
    tickets: ConnectionTickets[int] = ConnectionTickets()
    assert len({tickets.issue(number, "", 0.0) for number in range(100)}) == 100
