"""Where Tidegate answers a user otherwise than Kafka, on purpose; docs/security.md says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

REASONS: Final[dict[str, Callable[[str, str, str], bool]]] = {
    "A topic that Metadata creates is there with the answer, without a leader yet; Kafka creates it later.": (
        lambda question, own, kafkas: (
            question == "metadata 13, a topic to be created"
            and sorted(own.replace("LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION")) == sorted(kafkas)
        )
    ),
    "An election of all partitions names only the topics of which a leader was elected.": (
        lambda question, own, _: question == "election of all" and own == "{}"
    ),
    "AlterConfigs of all brokers takes what IncrementalAlterConfigs of all brokers takes.": (
        lambda question, own, kafkas: (
            question == "alter_configs of resource type 4"
            and own == kafkas.replace("error_code: INVALID_CONFIG, ", "")
        )
    ),
    "A broker that is no follower of the partition gets another error.": (
        lambda question, own, kafkas: (
            question.startswith("fetch of a follower")
            and "AUTHORIZATION" not in own + kafkas
            and "NOT_LEADER_OR_FOLLOWER" in kafkas
        )
    ),
    "A pattern is matched at once, and with topics that its member may not describe, too.": (
        lambda question, own, kafkas: (
            question == "member of a consumer group, by pattern" and "assignment" in own and kafkas == "{}"
        )
    ),
}
"""Reason -> whether it holds for (question, own answer, Kafka's answer)."""


def reason(question: str, own: str, kafkas: str) -> str | None:
    """Why the answers differ; None when there is no reason."""
    return next((text for text, holds in REASONS.items() if holds(question, own, kafkas)), None)
