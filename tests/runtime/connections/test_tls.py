"""Mutual TLS of the quorum: a node reports a fault in its own files when it starts, not when every peer
refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.runtime.connections.tls import MutualTls, TlsError, TlsFiles, certified_nodes
from tidegate.tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        (("node-1",), {1}),
        (("node-12", "localhost", "node-0"), {0, 12}),
        (
            (
                "node-01",
                "node-1a",
                "xnode-1",
                "node-",
                "node",
                "1",
                "a.node-1",
                "node-1x.b",
                "node-1.tidegate",
                "node-99999999999",
            ),
            set(),
        ),
        ((), set()),
    ],
)
def test_a_certificate_names_nodes_by_its_dns_names(names: tuple[str, ...], nodes: set[int]) -> None:
    certificate = {
        "subjectAltName": (*(("DNS", name) for name in names), ("URI", "node-7"), ("IP Address", "10.0.0.1"))
    }
    assert certified_nodes(certificate) == nodes
    assert certified_nodes(None) == certified_nodes({}) == frozenset()


def test_a_good_certificate_is_taken(authority: Authority) -> None:
    MutualTls.load(authority.issue("localhost", "node-3"), 3)


def _strangers(authority: Authority) -> TlsFiles:
    other = Authority(authority.folder, "stranger").issue("node-1")
    return TlsFiles(other.certificate, other.key, authority.path)


def _wrong_key(authority: Authority) -> TlsFiles:
    return TlsFiles(authority.issue("node-1").certificate, authority.issue("node-2").key, authority.path)


def _no_pem(authority: Authority) -> TlsFiles:
    files = authority.issue("node-1")
    assert files.certificate is not None
    files.certificate.write_text("hello")
    return files


def _missing(authority: Authority) -> TlsFiles:
    files = authority.issue("node-1")
    return TlsFiles(files.certificate, files.key, authority.folder / "nowhere.pem")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a: a.issue("node-2"), "names node-2: this node needs the DNS name node-1"),
        (lambda a: a.issue(), "names no node: this node needs the DNS name node-1"),
        (lambda a: a.issue("node-1", days=-1), "has expired at"),
        (_strangers, "is not accepted by"),
        (_wrong_key, "are not a PEM certificate and its key"),
        (_no_pem, "is not a readable PEM file of a certificate"),
        (lambda a: a.issue("node-1", password=b"secret"), "the key is encrypted"),
        (_missing, "nowhere.pem cannot be read"),
    ],
    ids=[
        "another node",
        "no node",
        "expired",
        "other authority",
        "wrong key",
        "no PEM",
        "encrypted key",
        "no authority",
    ],
)
def test_files_that_every_peer_would_refuse_are_refused_at_the_start(
    authority: Authority, make: Callable[[Authority], TlsFiles], message: str
) -> None:
    with pytest.raises(TlsError, match=message):
        MutualTls.load(make(authority), 1)


def test_a_certificate_with_another_key_is_not_given_to_grpc(authority: Authority) -> None:
    files = _wrong_key(authority)
    with pytest.raises(TlsError, match="has another key than"):
        files.pem()


def test_neither_keys_nor_their_passwords_are_printed(authority: Authority) -> None:
    files = replace(authority.issue("node-1", password=b"s3cret"), key_password="s3cret")
    assert "s3cret" not in repr(files)
    assert "node-1" in repr(files)
    assert b"PRIVATE KEY" in (files.pem().key or b"")
    assert "PRIVATE KEY" not in repr(files.pem())
