"""What a listener's settings of security may say: each mistake is refused at the start, and none shows a
password."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.node.settings.definitions import SETTINGS
from tidegate.node.settings.security_settings import (
    ListenerSecurity,
    SecuritySettingError,
    listener_security,
    plain_passwords,
    setting_of_listener,
    super_users,
)
from tidegate.runtime.connections.listeners import Listener, SecurityProtocol
from tidegate.runtime.connections.tls import ClientAuth
from tidegate.security.principals import Principal

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = f'{PLAIN} required user_alice="s3cret" serviceName="kafka" user_bob="t0p";'
FILES = {"ssl.keystore.location": "own.pem", "ssl.truststore.location": "ca.pem"}


def made(protocol: str, values: dict[str, Any], *, is_for_nodes: bool = False) -> ListenerSecurity:
    listener = Listener("IN", "127.0.0.1", 0, SecurityProtocol[protocol])
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    return listener_security(listener, defaults | values, is_for_nodes=is_for_nodes)


@pytest.mark.parametrize(
    ("protocol", "values", "message"),
    [
        ("SASL_SSL", {"sasl.enabled.mechanisms": ["GSSAPI"]}, "names GSSAPI: choose from"),
        ("SASL_SSL", {"sasl.enabled.mechanisms": []}, "of IN is empty"),
        ("SASL_SSL", {"sasl.enabled.mechanisms": ["PLAIN"]}, "PLAIN on IN needs its users"),
        ("SSL", {"ssl.keystore.location": ""}, "the listener IN needs a certificate"),
        ("SSL", {"ssl.client.auth": "sometimes"}, "choose from none, requested, required"),
        (
            "SSL",
            {"ssl.client.auth": "required", "ssl.truststore.location": ""},
            "certificates of clients are required on the listener IN",
        ),
        ("SSL", {"ssl.keystore.type": "JKS"}, "only PEM files are read"),
        ("SSL", {"ssl.truststore.type": "PKCS12"}, "only PEM files are read"),
        ("SSL", {"ssl.enabled.protocols": ["TLSv1.1"]}, "choose from TLSv1.2, TLSv1.3"),
        ("SSL", {"ssl.enabled.protocols": []}, "choose from TLSv1.2, TLSv1.3"),
        ("SSL", {"ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules"),
    ],
)
def test_a_mistake_is_refused(protocol: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SecuritySettingError) as refused:
        made(protocol, FILES | values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("protocol", "values", "is_for_nodes", "expected"),
    [
        ("SSL", {}, False, ClientAuth.NONE),
        ("SSL", {"ssl.client.auth": "requested"}, False, ClientAuth.REQUESTED),
        ("SSL", {"ssl.client.auth": "none"}, True, ClientAuth.REQUIRED),
        ("SASL_SSL", {"ssl.client.auth": "required"}, False, ClientAuth.NONE),
        ("SASL_SSL", {"listener.name.in.ssl.client.auth": "required"}, False, ClientAuth.REQUIRED),
        ("SSL", {"ssl.client.auth": "none", "listener.name.in.ssl.client.auth": "required"}, False,
         ClientAuth.REQUIRED),
        ("PLAINTEXT", {"ssl.client.auth": "required"}, False, ClientAuth.NONE),
    ],
)  # fmt: skip
def test_certificates_of_clients_are_asked_for_as_the_listener_says(
    protocol: str, values: dict[str, Any], is_for_nodes: bool, expected: ClientAuth
) -> None:
    found = made(protocol, FILES | values, is_for_nodes=is_for_nodes)
    assert found.client_auth is expected
    assert (found.tls is None) is (protocol == "PLAINTEXT")


def test_the_users_of_plain_are_those_of_the_listener_and_are_not_printed() -> None:
    values = {"sasl.enabled.mechanisms": ["PLAIN"], "listener.name.in.plain.sasl.jaas.config": USERS}
    found = made("SASL_PLAINTEXT", values)
    assert found.passwords == {"alice": "s3cret", "bob": "t0p"}
    assert "s3cret" not in repr(found)
    assert "t0p" not in repr(found)
    assert "s3cret" not in repr(made("SSL", FILES | {"ssl.key.password": "s3cret"}))


@pytest.mark.parametrize(
    "text", [USERS.replace(PLAIN, "com.example.PlainLoginModule"), USERS[:-1], 'user_alice="s3cret"']
)
def test_users_that_cannot_be_read_are_refused_without_a_password(text: str) -> None:
    with pytest.raises(SecuritySettingError, match="the key") as refused:
        plain_passwords(text, "the key")
    assert "s3cret" not in str(refused.value)


def test_a_listener_has_settings_of_security_alone() -> None:
    assert setting_of_listener("listener.name.sasl_ssl.ssl.client.auth") == ("SASL_SSL", "ssl.client.auth")
    assert setting_of_listener("num.partitions") is None
    for key in ("num.partitions", "super.users", "scram-sha-512.sasl.jaas.config"):
        with pytest.raises(SecuritySettingError):
            setting_of_listener(f"listener.name.sasl_ssl.{key}")


def test_super_users_are_whole_principals() -> None:
    assert super_users("User:root; User:CN=a,O=b") == {
        Principal("User", "root"),
        Principal("User", "CN=a,O=b"),
    }
    with pytest.raises(SecuritySettingError, match=r"super\.users"):
        super_users("root")
