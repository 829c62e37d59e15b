"""A part starts a task by `runtime.tasks.spawn`, which wants to know what a defect in it does; the tasks that
asyncio starts by itself keep their errors until nothing refers to them.  So `BARE` says of each other one
what becomes of its error."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import pytest
from tidegate.tests.architecture.source import parse, product_sources

pytestmark = pytest.mark.xdist_group("source")  # they share what is parsed

ROOMS = ("node", "replication", "controller")
STARTS = ("create_task", "ensure_future")
AWAITED = "the function that starts it awaits its result, and gets its error"
ENDS_WITH_ITS_USE = (
    "it closes what no part uses any more: nothing waits for it, and a failure leaves no work undone"
)

BARE: Mapping[str, str] = {
    "node/cluster/topic_creation.py: self._create(name)": "each request that shares it awaits its result",
    "node/coordinators/transaction_enlistment.py: self._answer(transaction, question)": (
        "each request that shares it awaits its result"
    ),
    "node/lifecycle/log_recovery.py: asyncio.to_thread(directory.open_all, now_ms=clock.wall_ms())": AWAITED,
    "node/lifecycle/log_recovery.py: stop_wanted": AWAITED,
    "node/node.py: self._stop_wanted.wait()": AWAITED,
    "node/node.py: work": AWAITED,
    "node/serving/listener.py: self._metered(work, *arguments)": (
        "the work of one request: `_in_turn` and `_await_aside` catch every error and close the connection"
    ),
    "node/upkeep/replica_moves.py: self._make(future)": "each caller that shares it awaits its result",
    "controller/remote/client.py: self._close()": ENDS_WITH_ITS_USE,
    "controller/remote/client.py: channel.close(LAST_CALLS_S)": ENDS_WITH_ITS_USE,
    "controller/service/metadata_log.py: self._make_snapshot()": "it ends the node itself, by `_die`",
}
"""File and work of each task that is started without `spawn` -> what becomes of its error.  None loops for as
long as its part: such a task has no answer that a caller awaits."""


def bare_tasks(sources: Mapping[str, str]) -> Iterator[str]:
    for path, tree in parse(sources):
        if path.split("/")[0] not in ROOMS:
            continue
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Attribute(attr=started) | ast.Name(id=started), args=[work, *_]) if (
                    started in STARTS
                ):
                    yield f"{path}: {ast.unparse(work)}"


def test_every_task_says_what_its_defect_does() -> None:
    assert sorted(bare_tasks(product_sources())) == sorted(BARE)


@pytest.mark.parametrize(
    "start", ["asyncio.create_task", "asyncio.get_running_loop().create_task", "ensure_future"]
)
def test_a_bare_task_is_found(start: str) -> None:
    source = f"async def run(self):\n    pass\ndef start(self):\n    {start}(self.run())"
    assert list(bare_tasks({"node/part.py": source})) == ["node/part.py: self.run()"]
    assert not list(bare_tasks({"node/part.py": source.replace(start, "spawn")}))
