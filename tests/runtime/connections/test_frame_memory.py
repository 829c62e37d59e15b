"""Memory for frames: an announced length alone reserves little, no connection starves the others, and a
buffer has one user at a time."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from tidegate.runtime.connections import frames
from tidegate.runtime.connections.frame_memory import FIRST_BUFFER_BYTES, BufferPool, ByteBudget, FrameLease
from tidegate.runtime.connections.frames import RATE_MIN, SLOW_FRAME_S, STALLED_FRAME_S
from tidegate.tests.eventually import eventually

from ..served import Served, echo, framed, refusals, serving

MIB = 1 << 20


class Frame:
    """One frame's dealings with a budget."""

    def __init__(self, budget: ByteBudget, size: int, first: int = 10) -> None:
        self.budget, self.size, self.held, self.asked = budget, size, 0, 0
        self.ask(min(first, size))

    def ask(self, size: int) -> None:
        self.asked = size
        if self.budget.take(size, self.granted, growing=self.held > 0):
            self.granted()

    def granted(self) -> None:
        self.held += self.asked
        self.asked = 0

    def finish(self) -> None:
        self.budget.whole(self.granted)
        self.budget.give_back(self.held)


def test_incomplete_frames_come_first_and_one_may_exceed_the_limit() -> None:
    budget = ByteBudget(100)
    first, second = Frame(budget, 90, 50), Frame(budget, 90, 50)
    new = Frame(budget, 10)
    assert (first.held, second.held, new.held) == (50, 50, 0)
    first.ask(40)
    second.ask(40)
    assert (first.held, second.held) == (90, 50), "one of them, or both would wait for ever"
    assert budget.used_bytes == 140
    first.finish()
    assert (second.held, new.held) == (90, 10), "it fits now, and with it the new one"
    second.finish()
    new.finish()
    assert budget.used_bytes == 0
    assert budget.waiting_count == 0


@pytest.mark.parametrize("seed", range(30))
def test_frames_are_finished_and_at_most_one_exceeds_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    budget = ByteBudget(200)
    open_frames: list[Frame] = []
    finished = started = 0
    for _ in range(5000):
        if started < 200 and len(open_frames) < 20:
            open_frames.append(Frame(budget, rng.choice([5, 30, 150, 190])))
            started += 1
        assert budget.used_bytes <= 200 + 190
        able = [frame for frame in open_frames if frame.held and not frame.asked]
        if not able:
            break
        frame = rng.choice(able)
        if frame.held == frame.size:
            frame.finish()
            open_frames.remove(frame)
            finished += 1
        else:
            frame.ask(min(frame.held * 3, frame.size - frame.held))
    assert finished == 200, f"{len(open_frames)} frames wait for one another"
    assert budget.used_bytes == 0


def test_without_the_one_beyond_the_limit_frames_wait_for_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ablation."""
    monkeypatch.setattr(
        ByteBudget, "_may_grow", lambda self, size, _: self.used_bytes + size <= self.limit_bytes
    )
    with pytest.raises(AssertionError, match="wait for one another"):
        for seed in range(30):
            test_frames_are_finished_and_at_most_one_exceeds_the_limit(seed)


def test_a_growing_frame_that_goes_away_lets_another_one_grow() -> None:
    budget = ByteBudget(100)
    first, second = Frame(budget, 90, 50), Frame(budget, 90, 50)
    first.ask(40)
    second.ask(40)
    budget.forget(second.granted)
    budget.whole(second.granted)
    assert budget.waiting_count == 0
    third = Frame(budget, 10)
    assert third.held == 0
    second.finish()
    assert third.held == 10


# ---- peers -------------------------------------------------------------------------------------------------


def time_by_hand(served: Served) -> float:
    """The loop's time; from now on the server looks at its connections only when the test says so, and at
    what time."""
    assert served.server._look_timer is not None
    served.server._look_timer.cancel()
    return asyncio.get_running_loop().time()


async def test_announcing_large_frames_and_trickling_does_not_hold_up_others() -> None:
    """Three connections announced all the memory there is and every larger request stood still, for as long
    as they liked."""
    budget = ByteBudget(24 * MIB)
    async with serving(echo, max_frame_bytes=100 * MIB, budget=budget) as served:
        trickling = [served.dial() for _ in range(9)]
        for peer in trickling:
            peer.sendall(struct.pack(">i", 100 * MIB) + bytes(10))
        await eventually(lambda: budget.used_bytes == 9 * MIB, "their first steps")
        connection, recorder = await served.connect()
        for _ in range(20):
            connection.send(bytes(600_000))
        await eventually(lambda: len(recorder.frames) == 20, "what others send")
        for peer in trickling:
            peer.close()
        await eventually(lambda: budget.used_bytes == 0, "what was held to be given back")


async def test_a_large_frame_gets_memory_as_it_comes() -> None:
    budget = ByteBudget(200 * MIB)
    async with serving(max_frame_bytes=100 * MIB, budget=budget) as served:
        with served.dial() as peer:
            peer.sendall(struct.pack(">i", 80 * MIB))
            sent = 0
            for upto in (1, 4, 16, 64, 80):
                await eventually(
                    lambda upto=upto: budget.used_bytes == upto * MIB,  # type: ignore[misc]
                    f"{upto} MiB to be granted",
                )
                await asyncio.to_thread(peer.sendall, bytes(upto * MIB - sent))
                sent = upto * MIB
            await eventually(lambda: served.handlers[0].frames, "the frame")
            assert served.handlers[0].frames == [bytes(80 * MIB)]
            assert budget.used_bytes == 0


async def test_a_frame_that_comes_too_slowly_is_closed_when_others_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budget = ByteBudget(1_000_000)
    async with serving(budget=budget) as served:
        with served.dial() as slow, served.dial() as patient:
            now = time_by_hand(served)
            slow.sendall(framed(bytes(900_000))[:1000])
            await eventually(lambda: budget.used_bytes == 900_000, "the slow frame's memory")
            connection = served.handlers[0].connection
            served.server.look_after(now + 60)  # no frame waits
            assert connection.is_open
            await asyncio.to_thread(patient.sendall, framed(bytes(900_000)))
            await eventually(lambda: budget.waiting_count == 1, "the other one to wait")
            for second in range(2, int(SLOW_FRAME_S), 2):
                slow.sendall(bytes(RATE_MIN))
                await eventually(
                    lambda: connection._progress - connection._seen.progress >= RATE_MIN, "the bytes"
                )
                served.server.look_after(now + 60 + second)
                assert connection.is_open
            served.server.look_after(now + 60 + SLOW_FRAME_S)
            await eventually(
                lambda: any(handler.frames for handler in served.handlers), "the patient one's frame"
            )
            assert refusals(caplog) == [
                "a frame of 900000 bytes comes too slowly while others wait for memory"
            ]


async def test_a_frame_that_comes_fast_enough_is_left_alone_while_others_wait() -> None:
    budget = ByteBudget(1_000_000)
    async with serving(budget=budget) as served:
        with served.dial() as steady, served.dial() as patient:
            now = time_by_hand(served)
            steady.sendall(framed(bytes(900_000))[:1000])
            await eventually(lambda: budget.used_bytes == 900_000, "the first frame's memory")
            connection = served.handlers[0].connection
            sending = asyncio.ensure_future(asyncio.to_thread(patient.sendall, framed(bytes(900_000))))
            await eventually(lambda: budget.waiting_count == 1, "the other one to wait")
            for look in range(1, 16):
                expected = connection._progress + 2 * RATE_MIN
                steady.sendall(bytes(2 * RATE_MIN))
                await eventually(lambda expected=expected: connection._progress >= expected, "the bytes")  # type: ignore[misc]
                served.server.look_after(now + 2 * look)
                assert connection.is_open, f"closed after {2 * look} s"
            await asyncio.to_thread(steady.sendall, bytes(900_000 + 4 - 1000 - 15 * 2 * RATE_MIN))
            await sending
            await eventually(lambda: all(handler.frames for handler in served.handlers), "both frames")


@pytest.mark.parametrize(
    "begun",
    [b"\0\0", framed(bytes(100))[:50], framed(bytes(900_000))[:1000]],
    ids=["in its length", "a small one", "a large one"],
)
async def test_a_frame_that_stands_still_is_closed(begun: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        with served.dial() as peer:
            peer.sendall(begun)
            await eventually(
                lambda: served.handlers and served.handlers[0].connection._progress == len(begun), "the bytes"
            )
            now = time_by_hand(served)
            served.server.look_after(now)
            served.server.look_after(now + STALLED_FRAME_S - 0.1)
            assert not served.handlers[0].closed
            served.server.look_after(now + STALLED_FRAME_S)
            await eventually(lambda: served.handlers[0].closed, "the close")
            assert "nothing came of a frame" in refusals(caplog)[0]


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async with serving(echo, idle_s=600) as served:
        idle, _ = await served.connect()
        talking, talked = await served.connect()
        owed, _ = await served.connect()
        await eventually(lambda: len(served.handlers) == 3, "all connections")
        handlers = {handler.connection.peer: handler for handler in served.handlers}
        names = [
            ":".join(map(str, c._transport.get_extra_info("sockname")[:2]))  # type: ignore[union-attr]
            for c in (idle, talking, owed)
        ]
        handlers[names[2]].connection.owes_answer = True
        now = time_by_hand(served)
        served.server.look_after(now)
        served.server.look_after(now + 300)
        talking.send(b"still here")
        await eventually(lambda: talked.frames, "the echo")
        served.server.look_after(now + 599)
        assert not any(handler.closed for handler in served.handlers)
        served.server.look_after(now + 601)
        await eventually(lambda: handlers[names[0]].closed, "the idle one's close")
        assert handlers[names[0]].closed == ["idle for 601 s"]
        assert not handlers[names[1]].closed
        assert not handlers[names[2]].closed


async def test_a_server_looks_after_its_connections_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.runtime.network.LOOK_AFTER_S", 0.01)
    monkeypatch.setattr(frames, "STALLED_FRAME_S", 0.05)
    async with serving() as served:
        with served.dial() as peer:
            peer.sendall(b"\0")
            await eventually(lambda: served.handlers and served.handlers[0].closed, "the close")


async def test_one_address_cannot_take_all_connections() -> None:
    counted: list[str] = []
    async with serving(
        max_connections=10, max_connections_per_address=2, on_refused=counted.append
    ) as served:
        first, _ = await served.connect()
        await served.connect()
        _, third = await served.connect()
        await eventually(lambda: third.closed, "the third to be turned away")
        assert counted == ["too_many_connections"]
        first.close()
        await eventually(lambda: len(served.server.connections) == 1, "room")
        _, fourth = await served.connect()
        await eventually(lambda: len(served.server.connections) == 2, "the fourth")
        assert not fourth.closed


# ---- buffers -----------------------------------------------------------------------------------------------


def test_a_buffer_is_used_again_only_without_remaining_views() -> None:
    pool = BufferPool()
    buffer = pool.take(100_000)
    view = memoryview(buffer)[10:20]
    pool.give(buffer)
    assert pool.take(100_000) is not buffer
    view.release()
    pool.give(buffer)
    assert pool.take(100_000) is buffer
    assert pool.kept_bytes == 0


def test_the_pool_is_bounded_and_its_buffers_are_little_larger_than_asked() -> None:
    pool = BufferPool(bytes_max=3 * MIB)
    for size in (1, FIRST_BUFFER_BYTES, 70_000, MIB, MIB + 4, 3 * MIB, 64 * MIB + 1):
        assert size <= len(pool.take(size)) <= max(FIRST_BUFFER_BYTES, size * 9 // 8 + FIRST_BUFFER_BYTES)
    for _ in range(10):
        pool.give(bytearray(MIB))
    assert pool.kept_bytes == 3 * MIB
    pool.give(bytearray())
    assert pool.kept_bytes == 3 * MIB


async def test_buffers_of_leased_frames_go_round() -> None:
    leases: list[FrameLease] = []
    async with serving(lambda connection, frame: leases.append(connection.detach())) as served:
        connection, _ = await served.connect()
        for number in range(20):
            payload = bytes([number]) * 500_000
            connection.send(payload)
            await eventually(lambda: leases, "the frame")
            assert leases[0].view == payload
            leases.pop().release()
        pool = served.handlers[0].connection._pool
        assert pool is not None
        assert pool.kept_bytes < 2 * MIB, "two or three buffers serve them all"


async def test_a_view_that_outlives_its_lease_keeps_its_bytes() -> None:
    kept: list[memoryview] = []

    def keep(connection: frames.FrameConnection, frame: memoryview) -> None:
        lease = connection.detach()
        kept.append(lease.view[100:200])
        lease.release()

    async with serving(keep) as served:
        connection, _ = await served.connect()
        for number in range(30):
            connection.send(bytes([number]) * 100_000)
        await eventually(lambda: len(kept) == 30, "the frames")
        assert [bytes(view) for view in kept] == [bytes([number]) * 100 for number in range(30)]
