"""/metrics can be read by Prometheus and holds what an operator of this broker looks at."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tidegate.coordinator.shard_view import Phase, ShardMetrics, ShardView
from tidegate.node.observation.metrics import JobsView, Metrics, NodeView, PartitionMetrics
from tidegate.node.serving.requests import worst_error
from tidegate.node.upkeep.log_upkeep import UpkeepView
from tidegate.wire.errors import ErrorCode

PARTITIONS = [
    PartitionMetrics("flights", 0, True, 90, 80, 100, 5, 4096, 3, True),
    PartitionMetrics("flights", 1, False, 7, 7, 7, 0, 512, 2, False),
    PartitionMetrics('odd"name\\', 0, True, 0, 0, 0, 0, 0, 0, False),
]
VIEW = NodeView(
    partitions=PARTITIONS,
    active_transactional_ids=4,
    open_transactions=2,
    groups=1,
    markers_abandoned=6,
    controller_active=True,
    metadata_index=42,
    ready=True,
    connections=9,
    under_min_isr=7,
    jobs=JobsView(open=3, oldest_open_s=1.5, committed=11, aborted=12),
    shards=[
        ShardView(
            "__transaction_state",
            3,
            Phase.ACTIVE,
            1,
            2,
            3,
            4,
            ShardMetrics(events=5, rejected_busy=6, bytes_written=7),
        ),
        ShardView("__transaction_state", 4, Phase.BARRIER, 0, 0, 0, 0, ShardMetrics(loads=1)),
        ShardView("__consumer_offsets", 3, Phase.LOADING, 0, 0, 0, 0, ShardMetrics()),
        ShardView("__consumer_offsets", 9, Phase.FAILED, 0, 0, 0, 0, ShardMetrics(failures=8)),
    ],
)


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.page().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_the_page_holds_every_gauge_that_operators_need() -> None:
    found = samples(Metrics(1, "0.1", lambda: VIEW))
    node = {name: value for (name, labels), value in found.items() if not labels}
    assert node["tidegate_live_producer_ids"] == 5
    assert node["tidegate_active_transactional_ids"] == 4
    assert node["tidegate_open_transactions"] == 2
    assert node["tidegate_under_replicated_partitions"] == 1
    assert node["tidegate_leader_partitions"] == 2
    assert node["tidegate_under_min_isr_partitions"] == 7
    assert node["tidegate_partitions"] == 3
    assert node["tidegate_active_controller"] == 1
    assert node["tidegate_metadata_index"] == 42
    assert node["tidegate_ready"] == 1
    assert node["tidegate_connections"] == 9
    assert node["tidegate_groups"] == 1
    assert node["tidegate_coordinators_loading"] == 2
    assert node["tidegate_coordinators_failed"] == 1
    assert node["tidegate_markers_cancelled_total"] == 6
    assert node["tidegate_open_jobs"] == 3
    assert node["tidegate_oldest_open_job_seconds"] == 1.5
    assert node["tidegate_jobs_committed_total"] == 11
    assert node["tidegate_jobs_aborted_total"] == 12
    first = (("partition", "0"), ("topic", "flights"))
    assert found["tidegate_high_watermark", first] == 90
    assert found["tidegate_last_stable_offset", first] == 80
    assert found["tidegate_log_end_offset", first] == 100
    assert found["tidegate_log_start_offset", first] == 5
    assert found["tidegate_log_size_bytes", first] == 4096
    assert found["tidegate_partition_producer_ids", first] == 3
    assert found["tidegate_node_info", (("node", "1"), ("version", "0.1"))] == 1


def test_every_shard_of_a_coordinator_has_its_own_figures() -> None:
    found = samples(Metrics(1, "0.1", lambda: VIEW))

    def of(name: str, topic: str = "__transaction_state", partition: str = "3") -> float:
        return found[f"tidegate_coordinator_{name}", (("partition", partition), ("topic", topic))]

    assert [of(name) for name in ("active", "queued", "parked", "waiting", "uncommitted")] == [1, 1, 2, 3, 4]
    assert [of(name) for name in ("events_total", "rejected_busy_total", "written_bytes_total")] == [5, 6, 7]
    assert of("active", partition="4") == 0
    assert of("loads_total", partition="4") == 1
    assert of("failures_total", "__consumer_offsets", "9") == 8
    assert of("failures_total") == 0


def test_a_topic_with_an_odd_name_does_not_break_the_page() -> None:
    found = samples(Metrics(1, "0.1", lambda: VIEW))
    assert found["tidegate_log_end_offset", (("partition", "0"), ("topic", 'odd"name\\'))] == 0


def test_requests_are_counted_and_timed_by_name_and_outcome() -> None:
    metrics = Metrics(1, "0.1", lambda: VIEW)
    for seconds in (0.001, 0.2):
        metrics.request_done("produce", ErrorCode.NONE, seconds)
    metrics.request_done("produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.1)
    found = samples(metrics)
    assert found["tidegate_requests_total", (("outcome", "ok"), ("request", "produce"))] == 2
    assert (
        found["tidegate_requests_total", (("outcome", "not_leader_or_follower"), ("request", "produce"))] == 1
    )
    assert found["tidegate_request_seconds_count", (("request", "produce"),)] == 3
    assert found["tidegate_request_seconds_bucket", (("le", "0.0025"), ("request", "produce"))] == 1


def test_the_outcome_of_an_answer_is_its_most_severe_error() -> None:
    retriable = {"partition_index": 0, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    fatal = {"partition_index": 1, "partition_error_code": int(ErrorCode.INVALID_TXN_STATE)}
    assert worst_error({"error_code": 0, "topics": []}) is ErrorCode.NONE
    nested = {"error_code": 0, "topics": [{"partitions": [{"error_code": 0}, retriable]}]}
    assert worst_error(nested) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert worst_error({"topics": [{"partitions": [retriable, fatal]}]}) is ErrorCode.INVALID_TXN_STATE
    assert worst_error({"topics": [{"partitions": [fatal, retriable]}]}) is ErrorCode.INVALID_TXN_STATE
    assert worst_error({"error_code": 4711}) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_bytes_and_refused_frames_are_counted() -> None:
    metrics = Metrics(1, "0.1", lambda: VIEW)
    metrics.bytes_in(10)
    metrics.bytes_in(5)
    metrics.bytes_out(7)
    metrics.frame_rejected("request_refused")
    found = samples(metrics)
    assert found["tidegate_bytes_total", (("direction", "in"),)] == 15
    assert found["tidegate_bytes_total", (("direction", "out"),)] == 7
    assert found["tidegate_rejected_frames_total", (("reason", "request_refused"),)] == 1


def test_the_state_is_read_at_the_scrape_not_before() -> None:
    views = 0

    def view() -> NodeView:
        nonlocal views
        views += 1
        return VIEW

    metrics = Metrics(1, "0.1", view)
    assert views == 0
    metrics.page()
    assert views == 1


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (of, field.name)
        for of in (NodeView, PartitionMetrics, UpkeepView, ShardView, ShardMetrics)
        for field in fields(of)
    ],
)
def test_every_field_of_a_view_is_exported(of: type, name: str) -> None:
    def page(view: NodeView) -> bytes:
        return Metrics(1, "0.1", lambda: view).page()

    def changed(part: Any) -> Any:
        value = getattr(part, name)
        match value:
            case bool():
                other: object = not value
            case int() | float():
                other = value + 1
            case str():
                other = value + "x"
            case Phase():
                other = Phase.FAILED
            case list():
                other = value[1:]
            case _:
                other = type(value)(1)
        return replace(part, **{name: other})

    (first, *others), (shard, *shards) = PARTITIONS, VIEW.shards
    view = {
        NodeView: lambda: changed(VIEW),
        PartitionMetrics: lambda: replace(VIEW, partitions=[changed(first), *others]),
        UpkeepView: lambda: replace(VIEW, upkeep=changed(VIEW.upkeep)),
        ShardView: lambda: replace(VIEW, shards=[changed(shard), *shards]),
        ShardMetrics: lambda: replace(VIEW, shards=[replace(shard, metrics=changed(shard.metrics)), *shards]),
    }[of]()
    assert page(view) != page(VIEW)
