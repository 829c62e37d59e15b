"""Certificates of our own authority are accepted where they are made for, also by OpenSSL's strict checks."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from tidegate.runtime.connections.tls import MutualTls, TlsError, TlsFiles, certified_nodes
from tidegate.security.certificates import (
    Authority,
    Certificate,
    CertificateError,
    client_certificate,
    node_certificate,
)
from tidegate.tests.certificates import lifetime


def shown(folder: Path, authority: Authority, own: Certificate, host: str) -> dict[str, object]:
    """The certificate as a client sees it that connects to `host` and checks strictly."""
    (folder / "own.pem").write_bytes(own.with_key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "own.pem")
    client = ssl.create_default_context(cadata=authority.pem.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ends[0].getpeercert()
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("host", ["broker.example", "127.0.0.1", "::1", "node-7"])
def test_a_node_certificate_is_for_its_hosts_and_its_node(tmp_path: Path, host: str) -> None:
    authority = Authority.create("cluster", lifetime())
    own = node_certificate(authority, 7, ["broker.example", "127.0.0.1", "::1", "node-7"], lifetime())
    assert certified_nodes(shown(tmp_path, authority, own, host)) == {7}


def test_a_node_certificate_is_no_other_hosts(tmp_path: Path) -> None:
    authority = Authority.create("cluster", lifetime())
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shown(
            tmp_path, authority, node_certificate(authority, 7, ["127.0.0.1"], lifetime()), "broker.example"
        )


def test_who_has_a_certificate_is_no_authority(tmp_path: Path) -> None:
    """Else each node, and each client, could make certificates for all others."""
    authority = Authority.create("cluster", lifetime())
    signed = authority.sign("mallory", lifetime())
    mallory = Authority.load(signed.certificate, signed.key)
    forged = node_certificate(mallory, 7, ["broker.example"], lifetime())
    chained = Certificate(forged.certificate + signed.certificate, forged.key)
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        shown(tmp_path, authority, chained, "broker.example")
    (found,) = x509.load_pem_x509_certificates(signed.certificate)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not found.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_an_authority_makes_no_other_authorities() -> None:
    (found,) = x509.load_pem_x509_certificates(Authority.create("cluster", lifetime()).pem.certificate)
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_nodes_take_the_files_as_their_identity(tmp_path: Path) -> None:
    authority = Authority.create("cluster", lifetime())
    own = node_certificate(authority, 7, [], lifetime())
    (tmp_path / "own.pem").write_bytes(own.with_key)
    (tmp_path / "ca.pem").write_bytes(authority.pem.certificate)
    MutualTls.load(TlsFiles(tmp_path / "own.pem", None, tmp_path / "ca.pem"), 7)


def test_a_client_certificate_names_its_user_and_no_node(tmp_path: Path) -> None:
    authority = Authority.create("cluster", lifetime())
    own = client_certificate(authority, "node-7", lifetime())
    assert x509.load_pem_x509_certificate(own.certificate).subject.rfc4514_string() == "CN=node-7"
    (tmp_path / "own.pem").write_bytes(own.with_key)
    (tmp_path / "ca.pem").write_bytes(authority.pem.certificate)
    with pytest.raises(TlsError, match="names no node"):
        MutualTls.load(TlsFiles(tmp_path / "own.pem", None, tmp_path / "ca.pem"), 7)


def test_an_authority_is_loaded_again_and_goes_on_signing(tmp_path: Path) -> None:
    authority = Authority.create("cluster", lifetime())
    again = Authority.load(authority.pem.certificate, authority.pem.key)
    assert again.pem == authority.pem
    shown(tmp_path, authority, again.sign("later", lifetime(), hosts=["localhost"]), "localhost")


def test_an_authority_is_not_loaded_with_another_key() -> None:
    one, other = Authority.create("one", lifetime()), Authority.create("other", lifetime())
    with pytest.raises(CertificateError, match="not the certificate's"):
        Authority.load(one.pem.certificate, other.pem.key)
    with pytest.raises(CertificateError, match="not a PEM certificate"):
        Authority.load(b"hello", one.pem.key)


def test_no_key_stands_in_the_representation() -> None:
    assert "PRIVATE" not in repr(Authority.create("cluster", lifetime()).pem)
