"""`contrail simulate` as people and scripts use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from tests.replay.simulate.talks import talks, written

REQUESTS = 20
FAST = ("--workers", "3", "--speed-up", "20")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "trace.jsonl", talks(count=5, turns=4))


def ask(*words: str | Path) -> Result:
    return CliRunner().invoke(contrail, list(map(str, words)), catch_exceptions=True)


def stdout_of(*words: str | Path) -> str:
    found = ask(*words)
    assert found.exit_code == 0, (found.output, found.exception)
    return found.stdout


def found_json(*words: str | Path) -> Any:
    return json.loads(stdout_of("simulate", *words, "--json"))


def refused(*words: str | Path) -> str:
    """The sentence that is said to the caller."""
    found = ask("simulate", *words)
    assert isinstance(found.exception, CallerError), found.output
    return str(found.exception)


def test_help_shows_how_it_is_used() -> None:
    """Every option, and examples."""
    page = stdout_of("simulate", "--help")

    assert "contrail simulate trace.jsonl --sweep own_weight=1,2,4" in page
    for option in ("--format", "--engine-set", "--replica-lag", "--prefill-workers", "--concurrency", "--out"):
        assert option in page
    assert "simulate " in stdout_of("--help")


def test_json_has_the_keys_that_others_rely_on(trace: Path) -> None:
    """And says what was simulated."""
    found = found_json(trace, *FAST)

    for key in ("ttft_ms", "itl_ms", "e2e_ms"):
        assert found[key].keys() == {"mean", "p50", "p90", "p99"}
        assert 0 < found[key]["p50"] <= found[key]["p90"] <= found[key]["p99"]
    assert 0 < found["hit_rate"] < 1
    assert found["requests_per_s"] > 0
    assert found["requests"] == REQUESTS
    assert found["failed"] == 0
    assert int(found["digest"], 16) >= 0
    assert (found["simulated"]["workers"], found["simulated"]["speed_up"]) == (3, 20.0)
    assert found["simulated"]["routing"]["policy"] == "time"


def test_two_runs_are_equal_and_seeds_count(trace: Path) -> None:
    """But for the seconds that they took."""
    words = (trace, *FAST, "--replicas", "2", "--lag", "100", "--jitter", "2000", "--failures-per-hour", "3600")
    first, second, other = (found_json(*words, "--seed", seed) for seed in ("1", "1", "2"))

    for each in (first, second, other):
        assert each.pop("wall_s") > 0
    assert first == second
    assert first["digest"] != other["digest"]


def test_the_page_says_what_json_says(trace: Path) -> None:
    """In words."""
    page, found = stdout_of("simulate", trace, *FAST, "--replicas", "2"), found_json(trace, *FAST, "--replicas", "2")

    assert page.startswith("trace.jsonl, x20, 3 workers of 16,384 blocks of 64, engine mocker, policy time, 2 replicas")
    assert f"prompt tokens from caches  {100 * found['hit_rate']:.2f} %" in page
    assert f"{found['ttft_ms']['mean']:,.2f} ms" in page or f"{found['ttft_ms']['mean']:,.0f} ms" in page
    assert found["digest"] in page


def test_prefill_workers_are_told_of(trace: Path) -> None:
    """What they did, in words and in JSON; a sweep says how many prompts they computed."""
    words = (trace, *FAST, "--prefill-workers", "1", "--set", "remote_prefill_min_tokens=600")
    page, found = stdout_of("simulate", *words), found_json(*words)
    slow = found_json(*words, "--engine-set", "transfer_us_per_block=10000")
    swept = stdout_of("simulate", *words[:-4], "--jobs", "1", "--sweep", "prefill_workers=0,1")

    told_of = found["disaggregation"]
    assert page.startswith("trace.jsonl, x20, 3 + 1 prefill workers of 16,384 blocks of 64")
    assert f"prompts computed by prefill workers        {100 * told_of['remote_share']:.2f} %" in page
    assert f"pulled {told_of['jobs']['pulled']}" in page
    assert 0 < told_of["remote_share"] <= 1
    assert told_of["pulled_blocks"] > 0
    assert found["simulated"]["prefill_workers"] == 1
    assert slow["disaggregation"]["pull_ms"]["mean"] > 5 * told_of["pull_ms"]["mean"]
    assert [line.split()[-1] == "%" for line in swept.splitlines() if line.startswith("prefill_workers")] == [0, 1]
    assert "remote" in swept
    assert found_json(trace, *FAST)["disaggregation"] is None


def test_settings_change_what_is_found(trace: Path) -> None:
    """Of routing and of the engine."""
    usual = found_json(trace, *FAST)
    settings = found_json(trace, *FAST, "--policy", "round-robin", "--set", "decode_weight=2,request_weight=1")
    slow = found_json(trace, *FAST, "--engine", "linear", "--engine-set", "prefill_us_per_token=1000")
    few = ("--workers", "3", "--concurrency", "2", "--first", "6")
    closed = found_json(trace, *few, "--block-size", "16", "--blocks", "4096")

    assert settings["digest"] != usual["digest"]
    assert settings["simulated"]["routing"]["request_weight"] == 1
    assert slow["ttft_ms"]["mean"] > 5 * usual["ttft_ms"]["mean"]
    assert (closed["requests"], closed["simulated"]["engine"]["block_size"]) == (6, 16)


def test_what_failed_is_told_with_the_reason(trace: Path) -> None:
    """On the page, in JSON, and in the table of a sweep; settings of the queue count."""
    words = (trace, "--workers", "1", "--speed-up", "1000", "--set", "queue_max=2,active_max=2")
    found, page = found_json(*words), stdout_of("simulate", *words)
    swept = stdout_of("simulate", *words, "--jobs", "1", "--sweep", "active_max=2,100")

    assert found["failures"]["queue_full"] == found["failed"] > 5
    told_of = f"{found['failed']} (queue_full {found['failed']})"
    assert ["failed", *told_of.split()] in [line.split() for line in page.splitlines()]
    few, all_ = (line for line in swept.splitlines() if line.startswith("active_max "))
    assert few.endswith(f"  {told_of}")
    assert all_.endswith("  0")
    assert found_json(trace, *FAST)["failures"] == {}


def test_comparing_routers_is_gone(trace: Path) -> None:
    """One sentence says so, for the option and for the key of a sweep."""
    assert "--compare-every is gone" in refused(trace, *FAST, "--compare-every", "1")
    assert "compare_every: no such setting" in refused(trace, *FAST, "--sweep", "compare_every=1,2")


def test_a_closed_loop_has_no_times_to_speed_up(trace: Path) -> None:
    """So the page has no word of that; jitter still draws the order."""
    words = (trace, "--workers", "2", "--concurrency", "3")

    assert stdout_of("simulate", *words).startswith("trace.jsonl, 2 workers of")
    assert found_json(*words)["digest"] != found_json(*words, "--jitter", "3000")["digest"]


def test_its_log_is_one_that_the_other_commands_read(trace: Path, tmp_path: Path) -> None:
    """It verifies, explains, and can be simulated in its turn."""
    log = tmp_path / "run.contrail"
    run = found_json(trace, *FAST, "--out", log)

    proved = json.loads(
        stdout_of("replay", "verify", "--log", log, "--key-file", f"{log}.key", "--jobs", "1", "--json")
    )
    assert (proved["differences"], proved["gaps"], proved["decisions"]) == ([], [], run["requests"])
    assert "req-000020" in stdout_of("explain", "req-000020", "--log", log)
    again = found_json(log, "--workers", "3")
    assert again["requests"] == run["requests"]
    assert (again["simulated"]["model"], run["simulated"]["model"]) == ("", "")
    assert found_json(log, "--workers", "3", "--model", "simulated")["simulated"]["model"] == "simulated"
    assert again["hit_rate"] == pytest.approx(run["hit_rate"], rel=0.05)


def test_files_are_written_and_kept(trace: Path, tmp_path: Path) -> None:
    """What exists is not overwritten without being told to; a run that fails leaves nothing."""
    plot, write = tmp_path / "run.svg", tmp_path / "run.json"
    words = (trace, *FAST, "--plot", plot, "--write", write)

    assert "--plot draws SVG" in refused(trace, *FAST, "--plot", tmp_path / "run.png")
    stdout_of("simulate", *words)
    assert ET.parse(plot).getroot().tag.endswith("svg")
    assert json.loads(write.read_text())["requests"] == REQUESTS
    assert "run.svg exists: name another file, or overwrite it with --force" in refused(*words)
    stdout_of("simulate", *words, "--force")
    assert "there is no folder" in refused(trace, "--out", tmp_path / "none" / "log")
    (tmp_path / "bad").write_text("{}")
    assert "line 1" in refused(tmp_path / "bad", "--out", tmp_path / "log")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "run.json", "run.svg", "trace.jsonl"]


def test_a_sweep_is_a_table(trace: Path, tmp_path: Path) -> None:
    """A row for each combination, in the order asked for."""
    plot = tmp_path / "sweep.svg"
    words = (trace, *FAST, "--jobs", "1", "--sweep", "policy=kv,round-robin", "--sweep", "workers=1,2")
    page = stdout_of("simulate", *words, "--plot", plot, "--write", tmp_path / "sweep.json")
    found = json.loads((tmp_path / "sweep.json").read_text())

    rows = [line for line in page.splitlines() if line.startswith("policy ")]
    assert [row.split("  ")[0] for row in rows] == [
        "policy kv, workers 1",
        "policy kv, workers 2",
        "policy round-robin, workers 1",
        "policy round-robin, workers 2",
    ]
    assert [each["given"] for each in found["points"]][1] == {"policy": "kv", "workers": 2}
    assert all(each["ttft_ms"]["mean"] > 0 for each in found["points"])
    assert ET.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--set", "prefill_weight"), "'prefill_weight' is not KEY=VALUE"),
        (("--set", "speed=2"), "routing.speed: no such setting"),
        (("--policy", "best"), "routing.policy: 'best' is none of"),
        (("--engine-set", "wheels=4"), "does not know wheels"),
        (("--sweep", "workers"), "--sweep: 'workers' is not KEY=VALUE,VALUE"),
        (("--sweep", "workers=1", "--sweep", "workers=2"), "workers is given twice"),
        (("--sweep", "workers=1,2", "--out", "log"), "--out keeps the log of one run"),
        (("--replica-lag", "5,x"), "--replica-lag: '5,x' is not MS,MS"),
        (("--replica-lag", "5,6"), "replica_lags_ms has 2 lags for 1 replicas"),
        (("--workers", "0"), "workers must be from 1"),
        (("--prefill-workers", "-1"), "prefill_workers must be from 0"),
        (("--speed-up", "0"), "speed-up: 0 is not between"),
        (("--jitter", "-1"), "jitter: -1"),
        (("--format", "recording"), ""),
        (("--model", "m"), "is in Mooncake's format, which names no models: leave --model out"),
        (("--concurrency", "4", "--speed-up", "2"), "speed-up: with a concurrency requests come when others end"),
        (("--engine-set", "prefill_us_per_token=10"), "prefill_us_per_token: only the timing linear goes by it"),
        (("--jobs", "1", "--sweep", "engine.prefill_us_per_token=10,20"), "add --engine linear, or leave it out"),
        (("--replicas", "2", "--replica-lag", "5,6", "--lag", "1"), "lag_ms: each replica has a lag of its own"),
        (("--jobs", "1", "--replicas", "2", "--replica-lag", "5,6", "--sweep", "lag_ms=1,2"), "lag_ms: each replica"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(trace: Path, words: tuple[str, ...], why: str) -> None:
    """Before anything runs."""
    found = ask("simulate", trace, *words)

    assert found.exit_code != 0
    assert why in str(found.exception)


def test_a_missing_trace_is_named() -> None:
    """By its path."""
    assert refused("none.jsonl") == "none.jsonl cannot be read: No such file or directory"
