"""Whether the run rewrites the transcripts (the option is declared in tests/conftest.py)."""

from __future__ import annotations

import pytest


@pytest.fixture
def rewrites(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite-transcripts"))
