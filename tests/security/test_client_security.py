"""What a client reads of Kafka's properties, and that no error and no repr shows a password."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.client.command_line.connecting import Connection
from tidegate.client.command_line.output import CommandError
from tidegate.security.client_security import SecurityError, from_properties
from tidegate.security.properties import PropertiesError, read_properties, write_property
from tidegate.spark.options import OptionError, client_security, parse_options

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{}";'
SECRET = 's3cret=#!:\\"x'
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
    assert SECRET not in repr(security)


def test_a_bearer_token_is_read_from_its_file_for_each_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    security, _ = from_properties(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": "OAuthBearerLoginModule required;",
            "sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/token",
        }
    )
    assert b"auth=Bearer first\x01" in next(security.exchange())
    (tmp_path / "token").write_text("second")
    assert b"auth=Bearer second\x01" in next(security.exchange())


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
