"""The overrides of private methods are written for one exact version of one exact file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pysyncobj.syncobj
import pysyncobj.version
from tidegate.controller.raft.library import LIBRARY_VERSION

SYNCOBJ_SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"


def test_the_overrides_fit_the_installed_version_of_the_library() -> None:
    assert pysyncobj.version.VERSION == LIBRARY_VERSION
    content = Path(pysyncobj.syncobj.__file__).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SYNCOBJ_SHA256, (
        "pysyncobj/syncobj.py has changed: read every name in controller/raft/library.py against it "
        "before changing this hash"
    )
