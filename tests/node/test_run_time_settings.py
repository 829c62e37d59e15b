"""A node follows the settings that the metadata gives it while it runs (KIP-226)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidegate.controller.broker_settings import CATCH_UP_SETTING, CLEANER_SETTING
from tidegate.controller.model import ApplyResult
from tidegate.controller.state import ALL_NODES, ClusterState
from tidegate.node.cluster_view import ClusterView
from tidegate.node.metadata_application import MetadataApplication
from tidegate.node.run_time_settings import RunTimeSettings
from tidegate.runtime.clock import ManualClock

from .test_configuration import loaded


def test_what_is_set_at_run_time_holds_at_once_and_the_file_again_afterwards() -> None:
    configuration = loaded(**{CATCH_UP_SETTING: 9})
    limits: list[int | None] = []
    state = ClusterState()
    clock, settings = ManualClock(), RunTimeSettings(configuration)
    cluster = ClusterView(configuration.node_id, cast(Any, SimpleNamespace(state=state)), cast(Any, None), clock)
    replicas = SimpleNamespace(change_limits=lambda new: limits.append(new.catch_up_bytes_per_s), apply=list)
    directory, groups = SimpleNamespace(expect=list, topic_ids={}), SimpleNamespace(topics_changed=lambda: None)
    parts: list[Any] = [SimpleNamespace(broker_epoch=1), replicas, directory, groups]
    application = MetadataApplication(cluster, settings, *parts, clock)

    def applied(configs: dict[int, dict[str, str]] | None = None) -> None:
        state.index += 1
        if configs is not None:
            state.node_configs = configs
        application.apply(state, ApplyResult(state.index, 1))

    applied()
    applied({ALL_NODES: {CATCH_UP_SETTING: "100", CLEANER_SETTING: "7"}})
    applied()
    assert limits == [9, 100], "the file's, then that for all nodes, and nothing for an entry about something else"
    assert settings.number(CLEANER_SETTING) == 7
    applied({ALL_NODES: {CATCH_UP_SETTING: "100"}, 1: {CATCH_UP_SETTING: "5"}, 2: {CATCH_UP_SETTING: "6"}})
    applied({})
    assert limits == [9, 100, 5, 9] and settings.number(CLEANER_SETTING) == 32 << 20
