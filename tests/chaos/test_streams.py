"""What `tests.chaos.streams` measures and whom it harms, without a deployment."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from core.events import RequestMigrated
from tests.chaos import streams_site
from tests.chaos.disagg_engines import KINDS, Verdict
from tests.chaos.disagg_site import Worker
from tests.chaos.streams_findings import moved
from tests.chaos.streams_load import StreamLoad, StreamTally
from tests.chaos.streams_site import StreamSite
from tests.e2e.deployment import Running


class LateJudge:
    """Finds right what begins with `right`; the text `rival` is a tie."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []

    async def start(self, model: Path) -> None:
        """Nothing to prepare."""

    async def judge(self, prompt: list[int], max_tokens: int, text: str, *, whole: bool) -> Verdict:
        """Notes when."""
        self.asked_s.append(time.monotonic())
        tie = text == "rival"
        return Verdict(right=tie or text.startswith("right"), tie=tie, expected="right")

    async def stop(self) -> None:
        """Nothing runs."""


async def _loaded(texts: list[str]) -> tuple[StreamTally, LateJudge]:
    """What became of as many streams, which were told one of the texts each."""
    said = iter(texts)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        choice = {"text": next(said), "finish_reason": "length"}
        events = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(events), events))
        await writer.drain()
        writer.close()

    judge = LateJudge()
    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        load = StreamLoad(f"http://127.0.0.1:{port}", judge, 10, 1, stateful=0)
        await load.once(len(texts))
    return load.tally, judge


async def test_no_stream_waits_for_the_judge() -> None:
    tally, judge = await _loaded(["right"] * 5)
    assert tally.whole == 5
    assert 0 < tally.last_s <= min(judge.asked_s)


async def test_wrong_texts_and_ties_are_counted() -> None:
    tally, _ = await _loaded(["right", "wrong", "rival", "right"])
    assert tally.whole == 4
    assert len(tally.wrong) == 1
    assert len(tally.ties) == 1


def test_of_moved_streams_the_pauses_are_told() -> None:
    tally = StreamTally(ties={"b", "c"}, pause_of={"a": 0.1, "b": 0.5, "c": 9.0})
    events = [RequestMigrated(request=name, attempt=1, worker="w", told_tokens=1, reason="") for name in "aab"]
    assert moved(events, tally) == {
        "streams": 2,
        "most_of_one_stream": 2,
        "ties": 1,
        "median_pause_s": 0.3,
        "longest_pause_s": 0.5,
    }


class Known:
    """A worker that says how many requests it has; None if it cannot be asked."""

    def __init__(self, name: str, requests: int | None) -> None:
        self.name = name
        self.requests = requests

    def state(self) -> dict[str, Any]:
        """What it says of itself."""
        if self.requests is None:
            raise ConnectionRefusedError
        return {"requests": self.requests}


async def test_a_worker_is_harmed_that_answers_somebody(tmp_path: Path) -> None:
    site = StreamSite(Running(tmp_path, cast("Any", None), 0), KINDS["simulated"], {}, 4, 1)
    known = [Known("idle", 0), Known("gone", None), Known("stopped", 9), Known("busy", 3)]
    site.workers = [cast("Worker", worker) for worker in known]
    site.stopped.add("stopped")
    for _ in range(5):
        worker, requests = await site.busy()
        assert (worker.name, requests) == ("busy", 3)


async def test_nobody_is_harmed_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_site, "BUSY_S", 0.1)
    site = StreamSite(Running(tmp_path, cast("Any", None), 0), KINDS["simulated"], {}, 4, 1)
    site.workers = [cast("Worker", Known("idle", 0))]
    with pytest.raises(TimeoutError):
        await site.busy()
