"""Where Tidegate's answers differ from Kafka's on purpose; docs/kafka.md has the same for readers."""

from __future__ import annotations

from typing import Any

OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"


def known(label: str, path: str, here: Any, there: Any) -> str | None:
    """Why this difference is no finding; None when it is one."""
    field = path.rpartition(".")[2]
    if field == "error_message" and not label.startswith("group"):
        return "messages are in our own words, and come also where Kafka has none"
    if label == "group 'simple': OFFSET_DELETE grouped [0] again" or label == "groups deleted together":
        return "a group without members is gone with its last offset, not at the next look for expired ones"
    if label == "group, odd heartbeat: regex":
        return "what is wrong with a pattern is said in the words of RE2, not of RE2/J"
    if field == "rack":
        return "the racks of this comparison's nodes"
    if (
        ("fetch" in label or "session" in label)
        and field in ("high_watermark", "log_start_offset")
        and there == -1
        and here >= 0
    ):
        return "OFFSET_OUT_OF_RANGE and a divergence come with the high watermark and the log start"
    if (
        label.startswith("after a restart: batch ")
        and field in ("error_code", "base_offset")
        and there in (-1, OUT_OF_ORDER)
    ):
        return "a restarted node remembers five batches of a producer, Kafka the last one"
    if field == "log_append_time" and here is None and " again" in label:
        return "a duplicate has the append time of its original only where the broker stamps records"
    if (
        field == "log_start_offset"
        and here == -1
        and ("again" in label or "a gap" in label or "straggler" in label)
    ):
        return "a refused sequence comes without the log start"
    if label.startswith("metadata") and field == "partition_index":
        return "Metadata has partitions in the order of their numbers"
    if label.startswith("wrong node: fetch") and ".partitions[0]." in path and "epoch" not in label:
        return "a follower serves only clients that name a rack, others are sent to the leader"
    if (
        label.startswith(tuple(f"wrong node: fetch {n}" for n in (12, 13, 14, 15)))
        and "current_leader" in path
    ):
        return "Fetch names the leader from version 12 on, where Kafka does from 16"
    return None
