"""`tidegate certs` and `tidegate users`: what they make fits, is its owner's alone, and says its end."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
from tidegate.client import command_line
from tidegate.node.settings.security_settings import first_users
from tidegate.runtime.connections.tls import ClientAuth, ServerTls, TlsFiles
from tidegate.security.scram import ScramMechanism
from tidegate.tests.certificates import Authority
from typer.testing import CliRunner, Result


def tidegate(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(command_line.build(arguments), list(arguments), input=text)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    assert tidegate("certs", "authority", "--folder", str(tmp_path)).exit_code == 0
    return str(tmp_path)


def test_a_node_and_a_client_get_certificates_that_fit(folder: str) -> None:
    assert (
        tidegate("certs", "node", "3", "--host", "a.b", "--host", "10.0.0.3", "--folder", folder).exit_code
        == 0
    )
    assert tidegate("certs", "client", "alice", "--folder", folder).exit_code == 0
    for name in ("node-3.pem", "client-alice.pem", "ca.key"):
        assert (Path(folder) / name).stat().st_mode & 0o777 == 0o600
    ServerTls(TlsFiles(Path(folder) / "node-3.pem", None, Path(folder) / "ca.pem"), ClientAuth.REQUIRED)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(Path(folder) / "client-alice.pem")
    shown = tidegate("certs", "show", "--json", f"{folder}/node-3.pem", f"{folder}/client-alice.pem")
    node, client = json.loads(shown.stdout)
    assert (node["subject"], node["names"]) == ("CN=node-3", ["node-3", "10.0.0.3", "a.b"])
    assert (client["subject"], client["names"]) == ("CN=alice", [])
    assert 363 <= node["left_days"] <= 365


def test_an_authority_is_replaced_in_two_steps(folder: str) -> None:
    assert "--renew makes another one" in tidegate("certs", "authority", "--folder", folder).stderr
    assert tidegate("certs", "authority", "--renew", "--folder", folder).exit_code == 0
    assert len(json.loads(tidegate("certs", "show", "--json", f"{folder}/ca.pem").stdout)) == 2
    assert tidegate("certs", "authority", "--forget-former", "--folder", folder).exit_code == 0
    assert len(json.loads(tidegate("certs", "show", "--json", f"{folder}/ca.pem").stdout)) == 1


def test_a_certificate_that_has_ended_gives_an_exit_code(tmp_path: Path) -> None:
    ended = Authority(tmp_path).issue("a", days=-1)
    shown = tidegate("certs", "show", str(ended.certificate))
    assert shown.exit_code == 1
    assert "-1" in shown.stdout or "-2" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["node", "1", "--host", "a"], "make one with `tidegate certs authority`"),
        (["client", "alice"], "make one with `tidegate certs authority`"),
        (["client", "../alice"], "a user's name has letters"),
        (["authority", "--renew", "--forget-former"], "comes after"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused = tidegate("certs", *arguments, "--folder", str(tmp_path / "none"))
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_password_is_hashed_and_not_shown() -> None:
    hashed = tidegate("users", "hash", "admin", text="open sesame\n")
    assert hashed.exit_code == 0
    assert "sesame" not in hashed.output
    (user,) = first_users(hashed.stdout)
    assert (user.name, user.mechanism) == ("admin", ScramMechanism.SHA_512)
    salted = user.mechanism.salted_password("open sesame", user.credential.salt, user.credential.iterations)
    client_key = user.mechanism.hmac(salted, b"Client Key")
    assert user.mechanism.hash(client_key) == user.credential.stored_key
    assert tidegate("users", "hash", "admin", text="\n").exit_code != 0
