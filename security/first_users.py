"""Users that a cluster has from its first start (`bootstrap.scram.credentials`), as those of Kafka's
`kafka-storage format --add-scram`: the first administrator cannot be made by an administrator.  Pure.

    SCRAM-SHA-512=[name=admin,iterations=8192,salt=...,storedkey=...,serverkey=...]

The text holds no password, and nothing with which its reader can log in.  The first controller writes the
credentials into the metadata log in the command that begins the cluster; later starts do not read them, so
that a password that was changed since stays changed.
"""

from __future__ import annotations

import base64
import re
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Final

from .scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, credential_of

ITERATIONS: Final = 8_192
_TEXT: Final = re.compile(
    r"(SCRAM-SHA-\d+)=\[name=(.+),iterations=(\d+),salt=(.+),storedkey=(.+),serverkey=(.+)\]"
)
_MECHANISMS: Final = {each.mechanism_name: each for each in ScramMechanism}


class FirstUserError(ValueError):
    """Text that is no credential; the message shows none of it."""


@dataclass(frozen=True, slots=True)
class FirstUser:
    """A user, and what proves the password."""

    name: str
    mechanism: ScramMechanism
    credential: ScramCredential

    @classmethod
    def with_password(
        cls, name: str, password: str, salt: bytes, mechanism: ScramMechanism = ScramMechanism.SHA_512
    ) -> FirstUser:
        salted = mechanism.salted_password(password, salt, ITERATIONS)
        return cls(name, mechanism, credential_of(mechanism, salted, salt, ITERATIONS))

    @classmethod
    def parse(cls, text: str) -> FirstUser:
        """Raises FirstUserError."""
        found = _TEXT.fullmatch(text.strip())
        if found is None or found[1] not in _MECHANISMS:
            raise FirstUserError(
                "write it as SCRAM-SHA-512=[name=...,iterations=...,salt=...,storedkey=...,serverkey=...]; "
                "`tidegate users hash` makes it"
            )
        mechanism, iterations = _MECHANISMS[found[1]], int(found[3])
        try:
            salt, stored_key, server_key = (
                base64.b64decode(found[part], validate=True) for part in (4, 5, 6)
            )
        except (Base64Error, ValueError):
            raise FirstUserError(f"the salt and the keys of {found[2]} are Base64") from None
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise FirstUserError(f"{found[2]} has {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations")
        if {len(stored_key), len(server_key)} != {mechanism.digest_bytes} or not salt:
            raise FirstUserError(f"the keys of {found[2]} do not fit {mechanism.mechanism_name}")
        return cls(found[2], mechanism, ScramCredential(salt, stored_key, server_key, iterations))

    def __str__(self) -> str:
        held = self.credential
        salt, stored_key, server_key = (
            base64.b64encode(data).decode() for data in (held.salt, held.stored_key, held.server_key)
        )
        return (
            f"{self.mechanism.mechanism_name}=[name={self.name},iterations={held.iterations},salt={salt},"
            f"storedkey={stored_key},serverkey={server_key}]"
        )
