"""`contrail replay what-if` as people and scripts use it, on an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from core.events import BlocksStored, RequestPrefilled
from core.settings import RoutingSettings
from core.subjects import LOAD
from tests.projections.facts import finished, joined, load, prompt
from tests.replay.staged import KV, A, B, R, Stage


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty requests of ten talks under round-robin; every first token at 1 ms a token and ten more."""
    it = Stage()
    for name, worker in (("left", A), ("right", B)):
        it.say(KV, worker, joined(name))
        it.say(LOAD, worker, load())
    it.replica(R, settings=RoutingSettings(policy="round-robin"))
    it.clock.advance(1000)
    for turn in range(4):
        for talk in range(10):
            asked = prompt(*range(talk * 100, talk * 100 + 3 * (turn + 1)))
            request = f"talk{talk}-{turn}"
            routed = it.route(request, asked)
            it.say(KV, routed.worker, BlocksStored(hashes=asked.hashes()))
            cached = routed.predicted_cached_tokens
            ttft_ms = 10 + asked.tokens - cached
            it.tell(RequestPrefilled(request=request, attempt=0, cached_tokens=cached, ttft_ms=ttft_ms))
            it.clock.advance(100)
            it.tell(finished(request))
        if turn == 0:
            it.route("odd", prompt(9999))  # shifts the turns: from here on no talk goes where it went before
            it.tell(finished("odd"))
    return it.archived(tmp_path_factory.mktemp("what-if") / "log")


def ask(log: Path, *words: str) -> Result:
    return CliRunner().invoke(contrail, ["replay", "what-if", "--log", str(log), *words], catch_exceptions=True)


def asked_json(log: Path, *words: str) -> Any:
    found = ask(log, *words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def refused(log: Path, *words: str) -> str:
    """The sentence that is said to the caller."""
    found = ask(log, *words)
    assert isinstance(found.exception, CallerError), found.output
    return str(found.exception)


def test_one_scenario_is_a_page(log: Path) -> None:
    """The verdict first, how to have it, both sides, the worst cases by name, and how far to trust it."""
    page = ask(log, "--policy", "kv", "--worst", "2").stdout
    lines = page.splitlines()
    assert lines[0] == "what if policy kv?"
    assert lines[3].startswith("Better: first tokens an estimated")
    assert lines[4] == "  contrail settings set policy kv"
    assert "under policy round-robin" in page
    assert "left" in page
    assert "right" in page
    worst = lines[lines.index("the recorded choice cost most here:") + 2 :]
    assert "talk" in worst[0]
    assert "talk" in worst[1]
    assert not worst[2]
    assert "blocks" in worst[0]
    assert " ms" in worst[0]
    assert "Times are estimates: tiny takes 1000 ms per 1000 tokens" in page
    assert "Caches stay as recorded" in page
    assert "Loads stay as recorded" in page
    assert "A new decision does not change the record" in ask(log, "--help").stdout


def test_several_are_one_table_with_the_best_first(log: Path) -> None:
    """What wins has the settings in the form that sets them; what was recorded stands beside them."""
    page = ask(log, "--try", "policy=random", "--try", "policy=kv,decode_weight=0").stdout
    lines = page.splitlines()
    assert lines[0] == "2 scenarios over the same decisions"
    assert lines[3] == "best: policy kv decode_weight 0"
    assert lines[5] == "  contrail settings set policy kv decode_weight 0"
    table = lines[lines.index("") + 1 :]
    rows = [line for line in table if line.startswith(("policy", "as it was"))]
    assert [row.split("  ")[0] for row in rows] == [
        "policy kv decode_weight 0",
        "policy random",
        "as it was recorded, measured",
    ]


def test_nothing_better_is_said_so(log: Path) -> None:
    page = ask(log, "--sweep", "policy=round-robin", "--sweep", "prefill_weight=1,2").stdout
    assert "None of them is better than what was recorded." in page
    weights = ask(log, "--sweep", "prefill_weight=1,2").stdout
    assert "The recorded policy uses no weights" in weights
    assert "Nothing would have changed" in ask(log, "--set", "prefill_weight=2").stdout


def test_without_options_the_usual_is_tried(log: Path) -> None:
    found = asked_json(log)
    assert len(found["outcomes"]) > 5
    assert found["best"] == found["outcomes"][0]["scenario"]["settings"]
    assert found["best"]["policy"] == "kv"
    won = [outcome["regret_ms"] for outcome in found["outcomes"]]
    assert won == sorted(won, reverse=True)


def test_json_is_whole(log: Path) -> None:
    """Scripts get both sides, and every change if they ask for it; the same bytes each time."""
    found = asked_json(log, "--policy", "kv", "--changes", "--without", "left", "--lag", "5")
    assert found == asked_json(log, "--policy", "kv", "--changes", "--without", "left", "--lag", "5")
    (outcome,) = found["outcomes"]
    assert outcome["scenario"] == {
        "settings": {"policy": "kv"},
        "without": ["left"],
        "delay_ms": 5,
    }
    assert outcome["decisions"] == 41
    assert len(outcome["changes"]) == outcome["changed"] > 0
    assert {change["new_worker"] for change in outcome["changes"]} == {B}
    assert outcome["requests_new"] == {A: 0, B: 41}
    assert "changes" not in asked_json(log, "--policy", "kv")["outcomes"][0]


def test_a_stretch_is_asked_about(log: Path) -> None:
    """From a request to another; `-1s` goes back from the end of the export."""
    some = asked_json(log, "--policy", "kv", "--from", "talk0-1", "--to", "talk5-1")
    assert some["outcomes"][0]["decisions"] == 5
    last = asked_json(log, "--policy", "kv", "--from", "-450ms")
    assert last["outcomes"][0]["decisions"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "prefill_weight"), "KEY=VALUE"),
        (("--set", "weight=2"), "no such setting"),
        (("--sweep", "prefill_weight="), "KEY=VALUE,VALUE"),
        (("--sweep", "policy=kv", "--sweep", "policy=random"), "given twice"),
        (("--try", "policy=best"), "is none of kv"),
        (("--without", "middle"), "left, right"),
        (("--lag", "-5"), "delay_ms"),
        (("--policy", "kv", "--from", "routing:100000"), "no decision"),
        (("--data", "x", "--nats", "y"), "not both"),
        (("--recorded-load",), "is gone"),
        (("--set", "follow_load=false"), "is gone"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(log: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused(log, *words)
