"""Gives every user of a folder (a Secret: the file's name is the user, its text the password) the
SCRAM-SHA-512 credential of that password.  Users that are not there keep theirs.

The nodes get the salted password over TLS, keep what proves it, and have never seen the password itself.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path

from tidegate.client.connecting.cluster import Cluster, require_none
from tidegate.runtime.clock import SystemClock
from tidegate.security.client_security import ClientSecurity
from tidegate.security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

MECHANISM = ScramMechanism.SHA_512


def upsertion(user: str, password: str) -> dict[str, object]:
    """One entry of AlterUserScramCredentials."""
    salt = secrets.token_bytes(SALT_BYTES)
    return {
        "name": user,
        "mechanism": MECHANISM.code,
        "iterations": ITERATIONS_MIN,
        "salt": salt,
        "salted_password": MECHANISM.salted_password(password, salt, ITERATIONS_MIN),
    }


def read_users(folder: Path) -> dict[str, str]:
    """Names that begin with a dot are Kubernetes' own.  A line's end behind the password is none of it."""
    files = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]
    return {file.name: file.read_text().removesuffix("\n") for file in files}


async def create(bootstrap: str, security: ClientSecurity, users: dict[str, str]) -> None:
    """Raises RequestError, ConnectionFailed: the Job tries again."""
    cluster = Cluster(
        bootstrap, client_id="tidegate-users", clock=SystemClock(), request_timeout_s=30.0, security=security
    )
    await cluster.start()
    try:
        fields = {"deletions": [], "upsertions": [upsertion(user, word) for user, word in users.items()]}
        answer = await cluster.ask_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, fields)
    finally:
        await cluster.close()
    for result in answer.results:
        code = ErrorCode.from_wire(int(result.error_code))
        require_none(code, f"user {result.user}", result.error_message)
        print(f"user {result.user} has the password of the Secret")


def main() -> None:
    parser = argparse.ArgumentParser(description="Creates SCRAM users.")
    parser.add_argument("--bootstrap", required=True, help="host:port of the administrators' listener")
    parser.add_argument("--tls", required=True, type=Path, help="a folder with ca.crt, tls.crt, tls.key")
    parser.add_argument("--users", required=True, type=Path)
    arguments = parser.parse_args()
    users = read_users(arguments.users)
    if not users:
        print("the Secret tidegate-users is not there, or empty: no client can log in yet")
        return
    ca, certificate, key = (str(arguments.tls / name) for name in ("ca.crt", "tls.crt", "tls.key"))
    security = ClientSecurity("SSL", authorities=ca, certificate=certificate, key=key)
    asyncio.run(create(arguments.bootstrap, security, users))


if __name__ == "__main__":
    main()
