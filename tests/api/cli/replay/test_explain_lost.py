"""`contrail explain --lost` as people and scripts use it, on an export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.cli.main import contrail
from api.cli.output import json_text
from replay.cache.cache_losses import cache_losses
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests of three tenants, each a session of its own, on two workers with small caches."""
    path = tmp_path_factory.mktemp("lost") / "log"
    options = Options(workers=2, engine=replace(ENGINE, capacity_blocks=40), replicas=2, lag_ms=50)
    arrivals = [
        each._replace(tenant=f"t{n % 3}", session=f"s{n}") for n, each in enumerate(families(120, every_us=30_000))
    ]
    simulate(options, arrivals, archive=path)
    return path


@pytest.fixture(scope="module")
def worst(log: Path) -> str:
    """The request that lost most."""
    with Recording.open(log, KEY) as recording:
        found = cache_losses(recording).total.worst
    assert found is not None
    return found.request


def ask(log: Path, *words: str) -> str:
    found = CliRunner().invoke(contrail, ["explain", "--lost", "--log", str(log), *words])
    assert found.exit_code == 0, found.output
    return found.stdout


def as_json(log: Path, *words: str) -> Any:
    return json.loads(ask(log, *words, "--json"))


def test_the_page(log: Path, worst: str) -> None:
    """The sum, the choice, the parts of the prompt with sentences, then the basis; the numbers are those of JSON."""
    page, found = ask(log, worst), as_json(log, worst)
    lines, (attempt,) = page.splitlines(), found["attempts"]
    assert lines[0].startswith(f"{worst}, attempt 0: routing:{attempt['seq']} at 20")
    assert lines[2:4] == [attempt["summary"], attempt["choice"]]
    assert attempt["summary"].startswith(f"{attempt['lost_tokens']:,} of {attempt['prompt_tokens']:,} prompt tokens")
    for run in attempt["runs"]:
        assert any(f"{run['tokens']:,}" in line and run["worker_name"] in line for line in lines)
    rooms = [run["room"] for run in attempt["runs"] if run["room"]]
    assert rooms
    for room in rooms:
        assert any(room["shares"][0]["request"] in line for line in lines if "Their room was taken by" in line)
    assert "The log does not name the cause of a removal." in " ".join(page.split())


def test_json_adds_up(log: Path, worst: str) -> None:
    """Stable keys; the causes and the achieved tokens are the prompt, and shares are their sums."""
    found = as_json(log, worst)
    assert list(found) == ["request", "tenant", "attempts", "apart", "history_from_ms", "gaps", "forgotten"]
    (attempt,) = found["attempts"]
    assert attempt["achieved_tokens"] + sum(attempt["tokens"].values()) == attempt["prompt_tokens"]
    assert sum(run["tokens"] for run in attempt["runs"]) == attempt["lost_tokens"] > 0
    for run in attempt["runs"]:
        for stored in (run["room"], run["meanwhile"]):
            if stored:
                assert sum(share["blocks"] for share in stored["shares"]) + stored["unknown"] == stored["blocks"]
    assert json_text(found) == ask(log, worst, "--json").rstrip("\n")


def test_ways_to_name_the_request(log: Path, worst: str) -> None:
    """By the end of its id, as a turn of its session, and the last one."""
    whole = as_json(log, worst)
    assert as_json(log, f"chatcmpl-{worst}") == whole
    with Recording.open(log, KEY) as recording:
        session = recording.requests.attempts(worst)[0].session
        last = recording.requests.last()
    assert as_json(log, "--session", session, "--turn", "1") == whole
    assert last is not None
    assert as_json(log, "--last")["request"] == last.request
