"""One worker of the simulation: what it is told, what it says, and how seldom it is looked at."""

from __future__ import annotations

from actors.engines.simulated.engine_state import Submit
from actors.engines.simulated.sequence import BlockHashPrompt
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.events import BlocksStored, LoadReported, WorkerJoined, WorkerLost
from core.generation import GenerateRequest, Output, Sampling
from core.ids import LOST_SUFFIX, RequestId, StreamSeq, WorkerId
from core.prompt import hashes_to_bytes
from core.subjects import LOAD
from replay.recording.recording import RecordedFrame
from replay.simulate.simulated_log import KV, SimulatedLog
from replay.simulate.simulated_worker import SimulatedWorker
from replay.simulate.virtual_time import Agenda

SETTINGS = SimulatedSettings(block_size=32, capacity_blocks=1000, context_max=10_000, eos_every=0)
"""50 us a prompt token, 5 ms a pass of decoding."""
WORKER = WorkerId("00000000000000aa")


class Bench:
    """A worker alone with its log."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        log = SimulatedLog(self.agenda, None)
        self._reader = log.reader(0)
        self.heard: list[tuple[RequestId, int, str | None, int]] = []
        """Request, tokens, end and time of each output."""
        self.worker = SimulatedWorker(WORKER, 3, SETTINGS, self.agenda, log, self._hear)
        self.worker.join()
        self.happened = 0

    def _hear(self, request: RequestId, output: Output, at_us: int) -> None:
        self.heard.append((request, len(output.tokens), output.finish, at_us))

    def submit(self, name: str, tokens: int, answer: int) -> None:
        """A request has come that nobody's cache holds any of."""
        blocks = hashes_to_bytes(hash((name, place)) & 0xFFFF_FFFF for place in range(tokens // 32))
        request = GenerateRequest(id=RequestId(name), tokens=b"", sampling=Sampling(max_tokens=answer))
        self.worker.submit(Submit(request, known=BlockHashPrompt(tokens, blocks)))

    def until(self, at_us: int) -> None:
        """It is that time."""
        reached: list[bool] = []
        self.agenda.put(at_us, lambda: reached.append(True))
        while not reached:
            self.agenda.advance()
            self.happened += 1

    def frames(self) -> list[RecordedFrame]:
        return list(self._reader.until(self.agenda.now_us))

    def tokens(self, name: str) -> int:
        return sum(tokens for request, tokens, _, _ in self.heard if request == name)


def test_a_long_answer_is_looked_at_seldom() -> None:
    """Its load is told four times a second; beside that a token costs nothing. Times are exact all the same."""
    bench = Bench()
    bench.submit("a", 320, 2000)
    bench.until(10_100_000)

    assert (bench.heard[0][1], bench.heard[0][3]) == (1, 320 * 50)
    assert bench.heard[-1][2:] == ("length", 320 * 50 + 1999 * 5000)
    assert bench.tokens("a") == 2000
    assert bench.happened < 60


def test_what_comes_together_is_computed_together() -> None:
    """One pass for both prompts: neither waits for the other's."""
    bench = Bench()
    bench.submit("a", 320, 1)
    bench.submit("b", 640, 1)
    bench.until(1_000_000)

    assert {(request, at_us) for request, _, _, at_us in bench.heard} == {("a", 960 * 50), ("b", 960 * 50)}


def test_what_it_says() -> None:
    """Who it is; its blocks when they are there, in one message for each step; its load, and where its chain stands."""
    bench = Bench()
    bench.submit("a", 330, 3)
    bench.until(100_000)
    frames = bench.frames()

    said = {(f.stream, f.seq): (f.time_ms - frames[0].time_ms, f.message.events) for f in frames if f.message}
    ((_, (joined,)), (stored_ms, (stored,))) = (said[KV, StreamSeq(1)], said[KV, StreamSeq(2)])
    assert isinstance(joined, WorkerJoined)
    assert (joined.name, joined.block_size, joined.capacity_blocks) == ("worker-3", 32, 1000)
    assert stored_ms == 330 * 50 // 1000
    assert isinstance(stored, BlocksStored)
    assert (len(stored.hashes) // 8, stored.parent) == (10, None)
    bench.until(400_000)
    (at_ms, (load,)) = next((f.time_ms - frames[0].time_ms, f.message.events) for f in bench.frames() if f.message)
    assert isinstance(load, LoadReported)
    assert (at_ms, load.running, load.waiting, load.blocks_used, load.kv_n) == (250, 0, 0, 0, 2)
    assert load.kv_head == frames[-1].head
    assert (load.prompt_tokens, load.cached_tokens) == (330, 0)


def test_what_ends_has_told_what_it_had() -> None:
    """Up to the microsecond of its end, and nothing after it; that it is lost is said in both of its streams, by
    another source."""
    bench = Bench()
    bench.submit("a", 320, 1000)
    bench.until(1_000_000)
    bench.worker.crash()
    told, end_us = bench.tokens("a"), bench.agenda.now_us
    bench.frames()
    bench.until(9_000_000)

    assert told == 1 + (end_us - 320 * 50) // 5000
    assert bench.tokens("a") == told
    assert bench.frames() == []
    bench.worker.write_loss("00000000000000ff")
    lost = bench.frames()
    assert [(f.stream, f.owner) for f in lost] == [(KV, WORKER), (LOAD, WORKER)]
    for frame in lost:
        assert frame.message is not None
        assert (frame.message.source, frame.message.n) == (WORKER + LOST_SUFFIX, 0)
        assert frame.message.events == (WorkerLost(by="00000000000000ff", reason="no lease, no answer"),)
