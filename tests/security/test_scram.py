"""SCRAM: the example of RFC 7677, both sides against each other, and ways in which an exchange is forged."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable

import pytest
from tidegate.security.principals import Principal
from tidegate.security.sasl import Identity, SaslFailure
from tidegate.security.sasl_mechanisms import KnownUser, ScramExchange
from tidegate.security.scram import (
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    UnknownUsers,
    credential_of,
    parse_client_first,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
UNKNOWN = UnknownUsers(b"of the process")
IDENTITY = Identity(Principal("User", "alice"))


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salt = b"0123456789abcdef"
    salted = mechanism.salted_password(password, salt, ITERATIONS_MIN)
    return credential_of(mechanism, salted, salt, ITERATIONS_MIN)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential_of(SHA_256, SHA_256.salted_password("pencil", salt, 4096), salt, 4096)
    server = ScramServer(SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", UNKNOWN)
    first = parse_client_first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert server.challenge(first, known) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.verify(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("user", ["alice", "a=b,c", "Ünï"])
def test_both_sides_agree(mechanism: ScramMechanism, user: str) -> None:
    seen: list[str] = []

    def find(first: object) -> KnownUser:
        seen.append(getattr(first, "user", ""))
        return KnownUser(credential(mechanism, "pass"), IDENTITY)

    exchange = ScramExchange(mechanism, "server", UNKNOWN, find)
    client = ScramClient(mechanism, user, "pass", "client")
    step = exchange.respond(client.first(), 0)
    assert step.identity is None
    step = exchange.respond(client.final(step.token), 0)
    assert step.identity == IDENTITY
    assert seen == [user]
    client.finish(step.token)


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    answers = []
    users = {"eve": KnownUser(credential(SHA_256, "other"), IDENTITY)}
    for user in ("eve", "eva"):
        exchange = ScramExchange(SHA_256, "server", UNKNOWN, lambda first: users.get(first.user))
        client = ScramClient(SHA_256, user, "pass", "client")
        challenge = exchange.respond(client.first(), 0).token
        with pytest.raises(SaslFailure) as found:
            exchange.respond(client.final(challenge), 0)
        answers.append((len(challenge.split(b",")), str(found.value), found.value.detail))
    assert answers[0] == answers[1]


def test_an_unknown_user_has_one_salt_at_every_node() -> None:
    def salt(user: str, unknown: UnknownUsers) -> bytes:
        server = ScramServer(SHA_512, "s", unknown)
        return server.challenge(parse_client_first(f"n,,n={user},r=c".encode()), None).split(b",")[1]

    known = [credential(SHA_512, password) for password in ("one", "two", "three")]
    at_nodes = [UnknownUsers(secret, order) for secret, order in ((b"1", known), (b"2", known[::-1]))]
    assert len({salt("eve", each) for each in at_nodes}) == 1
    assert len({salt(user, at_nodes[0]) for user in ("eve", "eva")}) == 2
    assert salt("eve", UnknownUsers(b"1")) != salt("eve", UnknownUsers(b"2"))


def test_unknown_users_look_like_those_that_exist() -> None:
    """Kafka's tools make salts of 26 digits of base 36, and any number of iterations may be chosen."""
    shapes = {(4096, 26, True), (8192, 32, False)}
    known = [
        ScramCredential(b"3n5dhk2p" * 3 + b"zz", b"s", b"k1", 4096),
        ScramCredential(bytes(range(32)), b"s", b"k2", 8192),
    ]
    found = [UnknownUsers(b"", known).salt_and_iterations(SHA_256, f"user-{number}") for number in range(64)]
    assert {(iterations, len(salt), salt.isalnum()) for salt, iterations in found} == shapes


def _final(change: Callable[[bytes], bytes]) -> None:
    server = ScramServer(SHA_256, "server", UNKNOWN)
    client = ScramClient(SHA_256, "alice", "pass", "client")
    first = parse_client_first(client.first())
    final = client.final(server.challenge(first, credential(SHA_256, "pass")))
    server.verify(change(final))


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final[:-5],
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=clientserver", b"r=clientserver2"),
        lambda final: final.replace(b"r=clientserver", b"r=client"),
        lambda final: final.replace(b"p=", b"q="),
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
        lambda final: final.partition(b",p=")[0] + b",p=" + base64.b64encode(bytes(64)),
        lambda final: final.partition(b",p=")[0] + b",p=",
        lambda final: final + b"," + b"x" * 5000,
        lambda final: b"\xff" + final,
        lambda final: b"",
    ],
)
def test_a_final_message_that_is_changed_is_refused(change: Callable[[bytes], bytes]) -> None:
    _final(lambda final: final)
    with pytest.raises(ScramError):
        _final(change)


def test_a_proof_with_more_bytes_behind_it_is_refused() -> None:
    def longer(final: bytes) -> bytes:
        before, _, proof = final.partition(b",p=")
        return before + b",p=" + base64.b64encode(base64.b64decode(proof) + b"\0")

    with pytest.raises(ScramError):
        _final(longer)


def test_a_header_that_changed_on_the_way_is_refused() -> None:
    """The proof is right: it does not cover the header, which says whether the client can bind a channel."""
    server = ScramServer(SHA_256, "server", UNKNOWN)
    client = ScramClient(SHA_256, "alice", "pass", "client")
    on_the_way = client.first().replace(b"n,,", b"y,,")
    final = client.final(server.challenge(parse_client_first(on_the_way), credential(SHA_256, "pass")))
    with pytest.raises(ScramError, match="the channel binding changed"):
        server.verify(final)


def test_a_client_logs_in_as_itself_only() -> None:
    known = credential(SHA_256, "pass")
    own = parse_client_first(b"n,a=alice,n=alice,r=client")
    assert ScramServer(SHA_256, "server", UNKNOWN).challenge(own, known).startswith(b"r=clientserver,")
    with pytest.raises(ScramError, match="as itself only"):
        ScramServer(SHA_256, "server", UNKNOWN).challenge(
            parse_client_first(b"n,a=root,n=alice,r=client"), known
        )


def test_an_exchange_begins_once() -> None:
    server, first = ScramServer(SHA_256, "server", UNKNOWN), parse_client_first(b"n,,n=alice,r=client")
    server.challenge(first, credential(SHA_256, "pass"))
    with pytest.raises(ScramError, match="a second first message"):
        server.challenge(first, credential(SHA_256, "other"))


def test_a_client_does_not_learn_why_it_is_refused() -> None:
    """The reasons are for the node's log."""

    def refused(*tokens: bytes) -> tuple[str, str]:
        known = KnownUser(credential(SHA_256, "pass"), IDENTITY)
        exchange = ScramExchange(SHA_256, "server", UNKNOWN, lambda _: known)
        with pytest.raises(SaslFailure) as found:
            for token in tokens:
                exchange.respond(token, 0)
        return str(found.value), found.value.detail

    first = b"n,,n=alice,r=client"
    failures = [refused(b""), refused(b"n,a=root,n=alice,r=client"), refused(first, b"c=biws,r=no,p=AAAA")]
    assert len({message for message, _ in failures}) == 1
    assert len({detail for _, detail in failures}) == len(failures)


def test_proofs_and_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(len(known))
        return known == given

    monkeypatch.setattr(hmac, "compare_digest", compare)
    server = ScramServer(SHA_256, "server", UNKNOWN)
    client = ScramClient(SHA_256, "alice", "pass", "client")
    final = client.final(server.challenge(parse_client_first(client.first()), credential(SHA_256, "pass")))
    client.finish(server.verify(final))
    assert compared == [len(b"clientserver"), SHA_256.digest_bytes, SHA_256.digest_bytes]


def test_a_recorded_exchange_cannot_be_played_again() -> None:
    known = credential(SHA_256, "pass")
    client = ScramClient(SHA_256, "alice", "pass", "client")
    recorded = ScramServer(SHA_256, "first", UNKNOWN)
    final = client.final(recorded.challenge(parse_client_first(client.first()), known))
    again = ScramServer(SHA_256, "second", UNKNOWN)
    again.challenge(parse_client_first(client.first()), known)
    with pytest.raises(ScramError, match="another exchange"):
        again.verify(final)
    recorded.verify(final)
    with pytest.raises(ScramError, match="before the first"):
        recorded.verify(final)


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,n=alice", b"n,,r=x,n=alice", b"p=tls-unique,,n=alice,r=x", b"n,alice,n=alice,r=x",
     b"n,,n=a=b,r=x", b"n,,n=alice,r=", b"n,,n=alice,r=\x01", b"n,,n=,r=x", b"\xff",
     b"n,,n=alice,r=" + b"x" * 5000, b"n,a=" + b"x" * 5000 + b",n=alice,r=x"],
)  # fmt: skip
def test_a_first_message_that_cannot_be_read_is_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        parse_client_first(message)


@pytest.mark.parametrize(
    "first", [b"r=client,s=AAAA,i=4096", b"r=other,s=AAAA,i=4096", b"r=clients,s=AAAA,i=1",
              b"r=clients,s=!,i=4096", b"r=clients,s=AAAA,i=99999999", b"r=clients,s=AAAA"],
)  # fmt: skip
def test_a_client_refuses_a_server_that_asks_for_too_little_or_too_much(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient(SHA_256, "alice", "pass", "client").final(first)


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient(SHA_256, "alice", "pass", "client")
    client.final(b"r=clients,s=AAAA,i=4096")
    with pytest.raises(ScramError, match="does not know this user's credential"):
        client.finish(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(ScramError, match="the server refuses: other-error"):
        client.finish(b"e=other-error")


def test_a_credential_is_not_printed() -> None:
    shown = repr(KnownUser(credential(SHA_256, "pass"), IDENTITY))
    assert "stored_key" not in shown
