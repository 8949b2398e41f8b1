"""The parts of `bench.agents`: its figures beside a peer's, its options, and the front ends that it measures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from actors.engines.tiny_model import ensure_tiny_checkpoint
from bench import agents, frontdoor_targets
from bench.agents import Measured, figures, measure
from bench.agents_client import TalkAnswer, TalksRun, talk_all
from bench.agents_load import TalksLoad
from bench.agents_targets import CAPACITY_BLOCKS, CONTEXT_MAX, MODEL, SPEED, MeasuredSide, dynamo, ours
from bench.figures import OURS, Figure
from core.events.request_stages import RequestStages

PEER = "Dynamo of dyn"
LOAD = TalksLoad(2, 10, 2, 400, 100)
"""So many requests that their processor time is some ticks of 10 ms."""
TICK_MS = 5
"""Of the kernel's own time of arrival."""
FAKE = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200 if asked["model"] == "sim" else 404)
        self.end_headers()

with open(sys.argv[0] + "." + sys.argv[2], "w") as file:
    json.dump(sys.argv[1:], file)
if sys.argv[2] == "dynamo.mocker":
    time.sleep(600)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--http-port") + 1])), Handler).serve_forever()
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    agents._extend(parser)
    return parser.parse_args(words)


def measured(seconds: list[float], cpu_s: float = 1.0, **fields: Any) -> Measured:
    answers = [TalkAnswer(turn, each, each / 2, 200, 1000, 900) for turn, each in enumerate(seconds)]
    run = TalksRun(answers, in_flight=3, carried=fields.pop("carried", True))
    rest = {
        "idle_s": 0.1,
        "others_s": 2.0,
        "client_s": 0.4,
        "memory_bytes": 2**20,
        "grown_bytes": 0,
        "log_bytes": {},
        "stages": (),
    }
    return Measured(run=run, cpu_s=cpu_s, **{**rest, **fields})


def by_name(found: Iterable[Figure]) -> dict[str, Figure]:
    return {figure.what.removeprefix("load: "): figure for figure in found}


def test_figures_are_medians_of_our_runs_beside_those_of_the_peer() -> None:
    runs = {
        OURS: [measured([0.1, 0.2, 0.3, 0.9], cpu_s=cpu_s) for cpu_s in (0.4, 9.0, 0.8)],
        PEER: [measured([0.2, 0.4, 0.8, 1.0], cpu_s=1.6)],
    }

    found = by_name(figures("load", runs, streams=True))

    assert (found["CPU per request"].value, found["CPU per request"].peer) == pytest.approx((200, 400))
    assert (found["CPU behind the front end, per request"].value, found["CPU of the client, per request"].peer) == (
        500,
        100,
    )
    assert (found["whole answer, p50"].value, found["whole answer, p50"].peer) == (300, 800)
    assert (found["first text, p50"].value, found["first text, p99"].peer) == (150, 500)
    assert found["hit rate"].value == found["hit rate"].peer == 0.9
    assert not found["hit rate"].lower_is_better
    assert all(figure.note == f"peer: {PEER}" for figure in found.values())
    assert "first text, p50" not in by_name(figures("load", runs, streams=False))


def test_what_only_ours_has_stands_alone() -> None:
    # two attempts at the first of two requests; 100.0 ms and 50.0 ms are decoded
    stages = [RequestStages(held=400), RequestStages(behind=-1, decode=1000), RequestStages(decode=500, loop=1)]
    mine = measured([0.3, 0.1], log_bytes={"kv": 500}, stages=stages)

    found = by_name(figures("load", {OURS: [mine], PEER: [measured([0.3])]}, streams=False))

    shares = {what.split(", ")[1]: figure.value for what, figure in found.items() if "of the mean" in what}
    assert shares == {"held": 20.0, "decode": 75.0}, "a stage below a hundredth is not shown"
    assert (found["kv stream"].value, found["kv stream"].peer) == (250, None)


def test_a_rate_that_is_not_carried_is_named() -> None:
    runs = {OURS: [measured([0.1] * 5)], PEER: [measured([9.0, 9.0], carried=False)]}

    found = by_name(figures("load", runs, streams=False))

    assert (found["answered"].value, found["answered"].note[:30]) == (2, f"NOT CARRIED by {PEER}: "[:30])
    assert "answered" not in by_name(figures("load", {OURS: runs[OURS]}, streams=False))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--peer-venvs there --frontends 2", "--peer-venvs has no effect with --frontends"),
        ("--peer-venvs there --parts-alone", "--peer-venvs has no effect with"),
        ("--rates 4 --frontends 2", "--rates goes with neither"),
        ("--rates 0", "--rates are above 0"),
        ("--repeats 0", "--repeats is at least 1"),
        ("--peer-venvs no/such", "there is no no/such/bin/python"),
    ],
)
def test_options_without_an_effect_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        list(measure(parsed(*words.split())))

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_dynamos_workers_have_our_speed_capacity_and_context_and_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontdoor_targets, "SETTLE_S", 0.0)
    program, python, folder = tmp_path / "fake.py", tmp_path / "bin" / "python", tmp_path / "tiny"
    program.write_text(FAKE)
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    ensure_tiny_checkpoint(folder, lambda *_: None)

    with dynamo(tmp_path, folder, 5) as side:
        started = json.loads(Path(f"{program}.dynamo.mocker").read_text())
        model = Path(started[started.index("--model-path") + 1])
        contexts = [
            json.loads((model / name).read_text())[key]
            for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length"))
        ]
        front, behind = (
            [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]
            for pids in (side.target.pids, side.target.others)
        )

    assert {
        "--num-workers": "5", "--block-size": "16", "--num-gpu-blocks-override": str(CAPACITY_BLOCKS),
        "--speedup-ratio": f"{SPEED:g}", "--model-name": MODEL,
    }.items() <= dict(zip(started[2::2], started[3::2], strict=True)).items()  # fmt: skip
    assert contexts == [CONTEXT_MAX] * 2
    assert (len(front), len(behind)) == (1, 1)
    assert "dynamo.frontend" in front[0]
    assert "dynamo.mocker" in behind[0]
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] < CONTEXT_MAX
    assert side.log_state() is None


def test_ours_has_stages_of_each_request_and_bytes_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real deployment with one worker."""
    monkeypatch.setattr(agents, "IDLE_S", 0.1)
    runs: dict[str, TalksRun] = {}

    async def work(port: int) -> TalksRun:
        runs[OURS] = await talk_all(port, MODEL, LOAD, "seed", streams=True)
        return runs[OURS]

    with ours(frontends=1, workers=1) as side:
        found = agents._measured("load", side, work)

    assert isinstance(side, MeasuredSide)
    assert len(found.stages) == LOAD.requests
    assert 0 < sum(found.stage_ms(place) for place in range(len(RequestStages._fields))) <= found.mean_ms + TICK_MS
    assert found.log_bytes["routing"] > 100 * LOAD.requests
    assert found.log_bytes["kv"] > 0
    assert found.hit_rate > 0.5
    assert 0 < found.cpu_s < 10
    assert 0 < found.others_s < 10
    assert 0 < found.client_s < 10
    assert found.memory_bytes > 30 * 2**20


def test_turns_that_fail_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "IDLE_S", 0.0)
    monkeypatch.setattr(agents, "SETTLE_S", 0.0)

    async def work(_port: int) -> TalksRun:
        return TalksRun([TalkAnswer(0, 1.0, 1.0, 200, 10, 0), TalkAnswer(1, 1.0, 1.0, 503, 0, 0)], 1)

    nothing = MeasuredSide(frontdoor_targets.Target("none", 1, ()))
    with pytest.raises(SystemExit, match="load: 1 of 2 turns failed, the first one with 503"):
        agents._measured("load", nothing, work)
