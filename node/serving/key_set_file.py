"""The keys that sign bearer tokens, of a file that another program keeps fresh
(`sasl.oauthbearer.jwks.endpoint.url`): read again when it changes.  A file that cannot be read changes
nothing: the keys of before count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...runtime import logs
from ...runtime.disk import Disk
from ...security.bearer_tokens import KeySetError, parse_key_set

log = logs.get(__name__)

CHECK_INTERVAL_MS: Final = 2_000


class KeySetFile:
    """See the module's text.  Raises KeySetError, OSError when the file cannot be used at the start."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._text = disk.read(path)
        self._keys = parse_key_set(self._text)
        self._check_at_ms = 0

    def keys(self, now_ms: int) -> Mapping[str, Any]:
        """Key id -> key."""
        if now_ms >= self._check_at_ms:
            self._check_at_ms = now_ms + CHECK_INTERVAL_MS
            try:
                text = self._disk.read(self._path)
                if text != self._text:
                    self._keys, self._text = parse_key_set(text), text
                    log.info("key_set_read_again", path=str(self._path), keys=len(self._keys))
            except (OSError, KeySetError) as error:
                log.warning("key_set_not_used", path=str(self._path), reason=error)
        return self._keys
