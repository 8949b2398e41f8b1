"""`contrail replay what-if --closed-loop` as people and scripts use it, on the log of a simulation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from core.settings import RoutingSettings
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families

GOOD = ("--try", "policy=kv,prefill_weight=4")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred requests at random on six workers, within a second."""
    path = tmp_path_factory.mktemp("loop") / "log"
    options = Options(workers=6, engine=ENGINE, routing=RoutingSettings(policy="random"))
    simulate(options, families(100, every_us=10_000), archive=path)
    return path


def ask(log: Path, *words: str) -> Result:
    jobs = ["--jobs", "1"] if "--closed-loop" in words else []
    return CliRunner().invoke(contrail, ["replay", "what-if", "--log", str(log), *jobs, *words])


def page(log: Path, *words: str) -> str:
    """All on one line."""
    found = ask(log, "--closed-loop", *words)
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def asked_json(log: Path, *words: str) -> Any:
    found = ask(log, "--closed-loop", "--json", *words)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def refused(log: Path, *words: str) -> str:
    """The sentence that is said to the caller."""
    found = ask(log, *words)
    assert isinstance(found.exception, CallerError), found.output
    return str(found.exception)


def test_json_has_its_keys(log: Path) -> None:
    """Those of a simulation's report, for the record, for the same simulated, and for each scenario."""
    found = asked_json(log, *GOOD, "--sweep", "tie_margin=1,2", "--seed", "5")
    assert found.keys() == {"best", "recorded", "baseline", "off", "outcomes", "fitted", "basis", "notes"}
    report = found["recorded"].keys()
    assert {"requests", "failed", "hit_rate", "ttft_ms", "itl_ms", "e2e_ms", "load_spread", "digest"} <= report
    assert {"label", "scenario", "workers", *report} == found["baseline"].keys() == found["outcomes"][0].keys()
    assert found["baseline"]["label"] == "as recorded"
    assert {each["label"] for each in found["outcomes"]} == {
        "policy kv prefill_weight 4",
        "tie_margin 1",
        "tie_margin 2",
    }
    assert found["best"] == found["outcomes"][0]["scenario"]["settings"] == {"policy": "kv", "prefill_weight": 4}
    assert found["outcomes"][0]["ttft_ms"]["mean"] < found["baseline"]["ttft_ms"]["mean"]
    assert found["off"].keys() == {"hit_rate", "ttft", "e2e"}
    assert found["basis"]["requests"] == 100
    assert found["fitted"]["prefill_us_per_token"] == pytest.approx(50, rel=0.1)


def test_the_page(log: Path) -> None:
    """What it says first, and what that rests on."""
    found = ask(log, "--closed-loop", *GOOD, "--engine", "max_seqs=16", "--open-arrivals")
    assert found.exit_code == 0, found.output
    text = " ".join(found.output.split())
    assert "100 requests that came from 2026-01-01T00:00:00.000Z" in text
    assert "run again on 6 simulated workers" in text
    assert "best: policy kv prefill_weight 4 Better: first tokens" in text
    assert "contrail settings set policy kv prefill_weight 4" in text
    assert "as it was recorded" in text
    assert "the same, simulated" in text
    assert "All requests come when they came." in text
    assert "Given, not found in the record: max_seqs." in text


def test_whose_numbers_stand_there(log: Path) -> None:
    """A row has no number of a worker that it is without."""
    found = asked_json(log, "--without", "worker-0")
    (row,) = found["outcomes"]
    assert row["workers"] == [f"worker-{number}" for number in range(1, 6)]
    assert len(row["load_spread"]["requests"]["per_worker"]) == 5
    assert found["baseline"]["workers"] == found["basis"]["workers"] == ["worker-0", *row["workers"]]


def test_speeds_that_were_given(log: Path) -> None:
    """They are told as the runs had them, and so is where the others are from."""
    engine = "prefill_us_per_token=1000,decode_us_per_step=70000,decode_us_per_context_token=0"
    text = page(log, "--engine", engine)
    assert re.search(r"per pass and 1,000 ms per 1000 tokens \(given\), by \d+ first tokens that [a-z ]+\. ", text)
    assert (
        "A further token takes 70.0 ms (given) and 0.0 ms per 1000 tokens of all that are decoded at once (given)."
        in text
    )
    assert "half of them lie" not in text
    text = page(log, "--engine", "prefill_us_per_token=40,prefill_us_per_pass=2000")
    assert "in 2.0 ms per pass (given) and 40.0 ms per 1000 tokens (given). " in text
    assert re.search(r"decoded at once, by \d+ answers\.", text)
    assert "half of them lie within" in page(log, "--engine", "timing=linear")


def test_an_engine_with_times_of_its_own(log: Path) -> None:
    """No fitted speed is told."""
    text = page(log, "--engine", "timing=mocker")
    assert "Engines take as long as Dynamo's mock engine does" in text
    assert "A further token takes" not in text
    assert "compute a prompt in" not in text


def test_settings_that_change_nothing_here(log: Path) -> None:
    """No prompt is computed elsewhere in the simulation: who asks for such settings is told so."""
    words = ("--try", "policy=kv,prefill_queue_max=1", "--try", "prefill_wait_max_ms=5", "--try", "hold_max_ms=5")
    said = (
        "Nothing in these runs goes by these settings, whatever they change in a deployment: "
        "prefill_queue_max, prefill_wait_max_ms."
    )
    assert said in page(log, *words)
    found = asked_json(log, *words)
    assert found["notes"][-1] == said
    rows = {each["label"]: each for each in found["outcomes"]}
    assert rows["prefill_wait_max_ms 5"]["digest"] == found["baseline"]["digest"]
    assert "goes by these settings" not in page(log, "--policy", "kv")


def test_nothing_better(log: Path) -> None:
    """What was recorded, asked for once more, is no better than itself."""
    found = ask(log, "--closed-loop", "--policy", "random")
    assert "None of them is better than the recorded settings." in found.output
    assert asked_json(log, "--policy", "random")["best"] is None


def test_a_range(log: Path) -> None:
    found = asked_json(log, "--from", "request-60", "--policy", "kv")
    assert found["basis"]["warm_up"] + found["basis"]["requests"] == 100
    assert 30 < found["basis"]["requests"] < 45


def test_options_of_the_other_way(log: Path) -> None:
    """Those of decisions made again, and those of runs, go with their own."""
    for words in (["--changes"], ["--worst", "3"]):
        assert f"{words[0]} is of decisions made again" in refused(log, "--closed-loop", *words)
    for words in (["--try", "policy=kv,follow_load=false"], ["--set", "follow_load=false"]):
        assert "follow_load is gone" in refused(log, "--closed-loop", *words)
    for words in (["--engine", "max_seqs=1"], ["--open-arrivals"], ["--model", "x"], ["--seed", "1"], ["--jobs", "1"]):
        assert "add --closed-loop" in refused(log, *words)


def test_what_cannot_be(log: Path) -> None:
    assert "does not know speed" in refused(log, "--closed-loop", "--engine", "speed=1")
    assert "'x' is not KEY=VALUE" in refused(log, "--closed-loop", "--engine", "x")
    assert "no worker is left" in refused(
        log, "--closed-loop", *(word for number in range(6) for word in ("--without", f"worker-{number}"))
    )
    assert "no request of the model 'x'" in refused(log, "--closed-loop", "--model", "x")


def test_help_has_an_example() -> None:
    found = CliRunner().invoke(contrail, ["replay", "what-if", "--help"])
    assert "contrail replay what-if --closed-loop --log incident.contrail" in found.output
