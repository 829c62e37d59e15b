"""Tables of settings that the metadata keep beside the topics' own: how one entry of the log changes them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from tidegate.proto import metadata_pb2 as pb

_Key = TypeVar("_Key", bound=Hashable)


def with_change(
    configs: Mapping[_Key, Mapping[str, str]],
    key: _Key,
    change: pb.ChangeNodeConfig | pb.ChangeResourceConfig,
) -> Mapping[_Key, Mapping[str, str]]:
    """Another table, with what the change makes of one entry; an entry without settings is gone."""
    config = {name: value for name, value in configs.get(key, {}).items() if name not in change.remove}
    config.update((entry.key, entry.value) for entry in change.set)
    others = {each: settings for each, settings in configs.items() if each != key}
    return {**others, key: config} if config else others
