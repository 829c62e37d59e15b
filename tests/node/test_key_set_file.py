"""The keys of bearer tokens are read again when their file changes, and a faulty file changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tidegate.node.serving.key_set_file import CHECK_INTERVAL_MS, KeySetFile
from tidegate.runtime.disk import RealDisk
from tidegate.security.bearer_tokens import KeySetError


def key_set(*ids: str) -> str:
    public = json.loads(
        jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key())
    )
    return json.dumps({"keys": [public | {"kid": each, "use": "sig"} for each in ids]})


def test_keys_are_replaced_in_two_steps_and_never_lost(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(key_set("old"))
    found, now_ms = KeySetFile(path, RealDisk()), 1_000_000
    for text, ids in (
        (key_set("old"), {"old"}),
        (key_set("old", "new"), {"old", "new"}),
        ("{", {"old", "new"}),
        (None, {"old", "new"}),
        (key_set("new"), {"new"}),
    ):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        now_ms += CHECK_INTERVAL_MS
        assert set(found.keys(now_ms)) == ids
    path.write_text(key_set("later"))
    assert set(found.keys(now_ms + 1)) == {"new"}  # not before the interval is over


def test_a_faulty_file_stops_a_start(tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text('{"keys": []}')
    with pytest.raises(KeySetError):
        KeySetFile(tmp_path / "jwks.json", RealDisk())
    with pytest.raises(OSError, match="No such file"):
        KeySetFile(tmp_path / "absent", RealDisk())
