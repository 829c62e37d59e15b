"""What a client reads of Kafka's properties, and that no error and no repr shows a password."""

from __future__ import annotations

import pickle
import ssl
from base64 import b64encode
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.client.command_line.connecting import Connection
from tidegate.client.command_line.output import CommandError
from tidegate.security.client_security import (
    AuthenticationRefused,
    ClientSecurity,
    SecurityError,
    from_properties,
)
from tidegate.security.jaas import JaasError, parse_jaas
from tidegate.security.properties import PropertiesError, read_properties, write_property
from tidegate.security.sasl_mechanisms import TOKEN_BYTES_MAX
from tidegate.spark.options import OptionError, client_security, parse_options

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'
SECRET = 's3cret=#!:\\"x'
BEARER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "OAuthBearerLoginModule required;",
}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
QUOTED = SECRET.replace("\\", "\\\\").replace('"', '\\"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# no\n! no\n\n", {}),
        ("a=b\nc = d\ne: f\ng h\ni", {"a": "b", "c": "d", "e": "f", "g": "h", "i": ""}),
        ("a=b=c:d e", {"a": "b=c:d e"}),
        ("a=1\na=2", {"a": "2"}),
        ("long=one, \\\n   two,\\\n three\nnext=1", {"long": "one, two,three", "next": "1"}),
        (r"a\ b=\u0041\tc\\d", {"a b": "A\tc\\d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\r\nc=d", {"a": "b", "c": "d"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, found: dict[str, str]) -> None:
    assert read_properties(text.encode()) == found


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30))
def test_what_is_written_is_read_again(value: str) -> None:
    assert read_properties(write_property("name", value).encode()) == {"name": value}


@pytest.mark.parametrize("data", [b"\xff\xfe", b"=secret", b"x" * (1 << 20) + b"yy"])
def test_what_is_no_file_of_properties_is_refused_without_showing_it(data: bytes) -> None:
    with pytest.raises(PropertiesError) as refused:
        read_properties(data)
    assert "secret" not in str(refused.value)


def test_properties_of_kafkas_tools_mean_the_same_here() -> None:
    security, unknown = from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": JAAS.format(QUOTED),
            "client.dns.lookup": "use_all_dns_ips",
            "bootstrap.servers": "a:1",
        }
    )
    assert (security.protocol, security.mechanism) == ("SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert (security.username, security.password) == ("alice", SECRET)
    assert unknown == ["client.dns.lookup"]
    assert "s3cret" not in repr(security)


def test_no_secret_of_a_client_is_printed() -> None:
    security = ClientSecurity(
        "SASL_PLAINTEXT", key_password="s3cret", password="s3cret", username="alice",
        bearer_token=partial(str, "s3cret"),
    )  # fmt: skip
    assert "alice" in repr(security)
    assert "s3cret" not in repr(security)


@pytest.mark.parametrize(
    ("values", "is_checked"),
    [
        ({}, True),
        ({"ssl.endpoint.identification.algorithm": "https"}, True),
        ({"ssl.endpoint.identification.algorithm": ""}, False),
    ],
)
def test_the_name_of_the_host_is_checked_unless_the_properties_say_no(
    values: dict[str, str], is_checked: bool
) -> None:
    security, _ = from_properties({"security.protocol": "SSL", **values})
    assert security.tls is not None
    assert security.tls.newest.check_hostname is is_checked
    assert security.tls.newest.verify_mode is ssl.CERT_REQUIRED


def test_a_bearer_token_is_read_from_its_file_for_each_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    security, _ = from_properties(BEARER | {TOKEN_URL: f"file://{tmp_path}/token"})
    assert b"auth=Bearer first\x01" in next(security.exchange())
    (tmp_path / "token").write_text("second")
    assert b"auth=Bearer second\x01" in next(security.exchange())


def test_no_more_of_a_tokens_file_is_read_than_a_token_has(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * (2 * TOKEN_BYTES_MAX))
    security, _ = from_properties(BEARER | {TOKEN_URL: f"file://{tmp_path}/token"})
    assert len(next(security.exchange())) < TOKEN_BYTES_MAX + 100


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    exchange = ClientSecurity("SASL_PLAINTEXT", username="alice", password="s3cret").exchange()
    nonce = next(exchange).partition(b",r=")[2]
    exchange.send(b"r=" + nonce + b"server,s=AAAA,i=4096")
    with pytest.raises(AuthenticationRefused, match="does not know this user's credential") as refused:
        exchange.send(b"v=" + b64encode(bytes(64)))
    assert "s3cret" not in str(refused.value)


def test_a_refused_bearer_token_is_an_error_without_the_token() -> None:
    security = ClientSecurity("SASL_PLAINTEXT", mechanism="OAUTHBEARER", bearer_token=partial(str, "s3cret"))
    exchange = security.exchange()
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthenticationRefused, match="invalid_token") as refused:
        exchange.send(b"")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ['x required a="1" s3cret;', 'x required a="1"; b="s3cret";', 'x required a="s3cret', "s3cret"],
)
def test_text_of_jaas_with_a_rest_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(JaasError) as refused:
        parse_jaas(text)
    assert "s3cret" not in str(refused.value)


def test_text_of_jaas_is_bounded_and_its_values_are_not_printed() -> None:
    assert parse_jaas('x required a="s3cret";').options == {"a": "s3cret"}
    assert "s3cret" not in repr(parse_jaas('x required a="s3cret";'))
    with pytest.raises(JaasError):
        parse_jaas(f'x required a="{"y" * (1 << 20)}";')


BAD = [
    {"security.protocol": "TLS"},
    {"security.protocol": "SASL_PLAINTEXT"},
    {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": f'ScramLoginModule "{SECRET}"'},
    {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": f'x required password="{QUOTED}";'},
    {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.jaas.config": JAAS.format(QUOTED),
    },
    BEARER,
    BEARER | {TOKEN_URL: "https://s3cret@localhost/token"},
    {"ssl.truststore.type": "JKS", "sasl.jaas.config": JAAS.format(QUOTED)},
]


@pytest.mark.parametrize("values", BAD)
def test_properties_that_cannot_be_used_are_refused_without_showing_a_password(
    tmp_path: Path, values: dict[str, str]
) -> None:
    with pytest.raises(SecurityError) as refused:
        from_properties(values)
    assert "s3cret" not in str(refused.value)
    file = tmp_path / "client.properties"
    file.write_text("".join(write_property(name, value) for name, value in values.items()))
    with pytest.raises(CommandError) as complained:
        Connection("127.0.0.1:9092", file)
    assert "s3cret" not in str(complained.value)
    with pytest.raises(OptionError) as option:
        parse_options({"bootstrap": "a:1", "subscribe": "t"} | {f"kafka.{k}": v for k, v in values.items()})
    assert "s3cret" not in str(option.value)


def test_a_command_takes_the_brokers_of_its_file_unless_it_names_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1,b:2\nlinger.ms=5\n")
    assert Connection("127.0.0.1:9092", file).bootstrap == "a:1,b:2"
    assert "without meaning here: linger.ms" in capsys.readouterr().err
    assert Connection("c:3", file).bootstrap == "c:3"
    assert Connection("c:3", None).security is None
    with pytest.raises(CommandError, match="No such file"):
        Connection("c:3", tmp_path / "absent")


def test_sparks_options_carry_the_password_and_never_show_it() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "a:1",
            "subscribe": "t",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.jaas.config": JAAS.format(QUOTED),
            "kafka.max.poll.records": "5",
        }
    )
    assert "s3cret" not in repr(options)
    assert options.ignored == ("kafka.max.poll.records",)
    in_a_task = client_security(pickle.loads(pickle.dumps(options)).security)
    assert in_a_task is not None
    assert in_a_task.password == SECRET
