"""The parts of `bench.live_day`: times of processes, and the comparison with simulations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench.live_day import APART_MAX, ENGINE, SETTINGS, ProcessSpans, _compared, _requests
from projections.scaling.scale_settings import ScaleSettings
from replay.simulate.report import WorkerSpan


async def test_processes_count_from_their_first_look_to_their_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that drain count, too. One that is there at the end stayed; processes of other kinds do not count."""
    monkeypatch.setattr("bench.live_day.LOOK_S", 0.01)
    file, loop = tmp_path / "run.json", asyncio.get_running_loop()

    def write(parts: list[int], beside: list[int]) -> None:
        entries = [[{"kind": "worker", "pid": pid} for pid in pids] for pids in (parts, beside)]
        file.write_text(json.dumps({"parts": [*entries[0], {"kind": "nats", "pid": 9}], "beside": entries[1]}))

    processes, start_s = ProcessSpans(tmp_path), loop.time()
    write([1, 2], [])
    looking = asyncio.create_task(processes.look(start_s))
    await asyncio.sleep(0.1)
    write([1], [2])
    await asyncio.sleep(0.1)
    write([1], [])
    gone_s = loop.time() - start_s
    await asyncio.sleep(0.1)
    looking.cancel()
    await asyncio.wait((looking,))
    stayed, drained = processes.spans(0.3)  # a look came then or later, however late the loop is
    assert stayed == WorkerSpan(0, -1)
    assert drained.from_us == 0
    assert 150_000 < drained.until_us <= 1e6 * (gone_s + 0.01)


def test_live_and_simulated_figures_hold_within_a_bound() -> None:
    """Of the mean of the simulations."""
    assert _compared("hours", "", 10.0, [9.8, 10.2]).holds
    assert not _compared("hours", "", 10.0 * (1 + 1.1 * APART_MAX), [9.8, 10.2]).holds
    assert not _compared("hours", "", 10.0 * (1 - 1.1 * APART_MAX), [10.0]).holds


def test_bodies_are_made_when_they_are_sent(tmp_path: Path) -> None:
    """Each has the prompt and the length of its row. The settings are those that a deployment file has."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 10 * n, "input_length": 600, "output_length": n, "hash_ids": [0, n]} for n in (1, 2)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = _requests(trace, 0)
    assert not isinstance(asked.bodies, list)
    bodies = [json.loads(body) for body in asked.bodies]
    assert [len(body["prompt"]) for body in bodies] == [600, 600]
    assert [body["max_tokens"] for body in bodies] == [1, 2]
    assert all(ENGINE.token_min <= token < ENGINE.vocab for body in bodies for token in body["prompt"])
    assert ScaleSettings.parse(SETTINGS.to_mapping()) == SETTINGS
