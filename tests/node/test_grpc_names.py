"""A certificate names the same principal over gRPC as on a Kafka listener."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tidegate.node.serving.grpc_callers import subject_name
from tidegate.security.principals import distinguished_name

NAMES = [
    [(NameOID.COMMON_NAME, "alice")],
    [(NameOID.COUNTRY_NAME, "CH"), (NameOID.ORGANIZATION_NAME, "Acme, Inc."), (NameOID.COMMON_NAME, "a b")],
    [(NameOID.ORGANIZATIONAL_UNIT_NAME, 'x+y"z\\<>;'), (NameOID.COMMON_NAME, "#hash ")],
    [(NameOID.DOMAIN_COMPONENT, "example"), (NameOID.USER_ID, "u1"), (NameOID.COMMON_NAME, "Zoë")],
    [(NameOID.EMAIL_ADDRESS, "a@b.c"), (NameOID.COMMON_NAME, " lead"), (NameOID.LOCALITY_NAME, "Bern")],
    [(NameOID.SERIAL_NUMBER, "7"), (NameOID.TITLE, "Dr."), (NameOID.POSTAL_CODE, "8000")],
    [(NameOID.JURISDICTION_COUNTRY_NAME, "CH"), (NameOID.BUSINESS_CATEGORY, "x"), (NameOID.COMMON_NAME, "c")],
    [(x509.ObjectIdentifier("1.2.3.4.5"), "unknown to all")],
    [(NameOID.STATE_OR_PROVINCE_NAME, "BE"), (NameOID.STREET_ADDRESS, "1 Way"), (NameOID.COMMON_NAME, "=")],
]


@pytest.mark.parametrize("attributes", NAMES)
def test_a_name_is_the_same_over_grpc_and_kafka(
    tmp_path: Path, attributes: list[tuple[x509.ObjectIdentifier, str]]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "own.pem"
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    path.write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    (as_python_shows_it,) = context.get_ca_certs()
    assert subject_name(pem) == distinguished_name(as_python_shows_it)
