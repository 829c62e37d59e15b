"""A node follows the settings that the metadata gives it while it runs (KIP-226)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidegate.controller.broker_settings import CATCH_UP_SETTING, CLEANER_SETTING
from tidegate.controller.client import ControllerClient
from tidegate.controller.model import ApplyResult
from tidegate.controller.state import ALL_NODES, ClusterState
from tidegate.node.broker import Broker
from tidegate.runtime.clock import ManualClock

from .test_configuration import loaded


def test_what_is_set_at_run_time_holds_at_once_and_the_file_again_afterwards() -> None:
    configuration = loaded(**{CATCH_UP_SETTING: 9})
    broker = Broker(configuration, ManualClock(), cast(ControllerClient, None))
    limits: list[int | None] = []
    state = ClusterState()
    broker.metadata = cast(Any, SimpleNamespace(state=state))
    broker.membership = cast(Any, SimpleNamespace(broker_epoch=1))
    broker.directory = cast(Any, SimpleNamespace(expect=list))
    broker.groups = cast(Any, SimpleNamespace(topics_changed=lambda: None))
    broker.replicas = cast(Any, SimpleNamespace(change_limits=lambda new: limits.append(new.catch_up_bytes_per_s), apply=list))
    broker._delete_what_is_not_ours = lambda _state: None  # type: ignore[method-assign]

    def applied(configs: dict[int, dict[str, str]] | None = None) -> None:
        state.index += 1
        if configs is not None:
            state.node_configs = configs
        broker.on_metadata(state, ApplyResult(state.index, 1))

    applied()
    applied({ALL_NODES: {CATCH_UP_SETTING: "100", CLEANER_SETTING: "7"}})
    applied()
    assert limits == [9, 100], "the file's, then that for all nodes, and nothing for an entry about something else"
    assert broker.setting(CLEANER_SETTING) == 7
    applied({ALL_NODES: {CATCH_UP_SETTING: "100"}, 1: {CATCH_UP_SETTING: "5"}, 2: {CATCH_UP_SETTING: "6"}})
    applied({})
    assert limits == [9, 100, 5, 9] and broker.setting(CLEANER_SETTING) == 32 << 20
