"""`contrail explain scale` and `contrail replay what-if --scale` as people and scripts use them, on an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from tests.replay.simulate.planned import arrivals, planned


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated fleet that grows."""
    path = tmp_path_factory.mktemp("scale-readers") / "log"
    planned(arrivals((20, 2), (30, 16)), archive=path)
    return path


def ask(log: Path, *words: str) -> Result:
    return CliRunner().invoke(contrail, [*words, "--log", str(log)], catch_exceptions=True)


def answered(log: Path, *words: str) -> str:
    found = ask(log, *words)
    assert found.exit_code == 0, found.output
    return found.stdout


def refused(log: Path, *words: str) -> str:
    """The sentence that is said to the caller."""
    found = ask(log, *words)
    assert isinstance(found.exception, CallerError), found.output
    return str(found.exception)


def test_a_decision_is_explained(log: Path) -> None:
    """The newest one, and the one in force at a moment; JSON names all terms of its candidates."""
    newest = json.loads(answered(log, "explain", "scale", "--json"))
    before: Any = json.loads(answered(log, "explain", "scale", "-10s", "--json"))
    text = answered(log, "explain", "scale", f"scale:{before['seq']}")

    assert newest["verdict"] == before["verdict"] == "equal"
    assert before["decided"]["at_ms"] < newest["decided"]["at_ms"]
    assert newest["decided"]["candidates"][0].keys() >= {"workers", "rate_m", "attainment_bp"}
    assert newest["settings"]["slo"]["ttft_ms"] == 1000
    assert text.splitlines()[0] == f"decision of {before['time']} at scale:{before['seq']}"
    assert before["summary"][0] in text
    assert "Made again from the log, it comes out the same." in text
    assert "workers" in text
    assert "computing prompts" in text


def test_requests_are_explained_as_before(log: Path) -> None:
    """Also one whose id is that of the command beside."""
    assert "request req-000020" in answered(log, "explain", "req-000020")
    assert "contrail explain scale -5m" in CliRunner().invoke(contrail, ["explain", "--help"]).output
    assert "no request" in refused(log, "explain", "request", "scale")


def test_sizes_under_other_settings(log: Path, tmp_path: Path) -> None:
    """A row for the record, one for its settings, and one for each combination."""
    plot = tmp_path / "sizes.svg"
    words = ("replay", "what-if", "--scale", "--slo", "ttft=500,itl=50", "--sweep", "max=2,8")
    text = answered(log, *words, "--plot", str(plot))
    found = json.loads(answered(log, *words, "--json"))

    labels = [
        "as it was recorded",
        "settings as recorded",
        "ttft_ms 500 itl_ms 50 max 2",
        "ttft_ms 500 itl_ms 50 max 8",
    ]
    rows = text.partition("\n\n")[2].splitlines()[1:5]
    assert [row.partition("  ")[0] for row in rows] == labels
    assert [found["recorded"]["label"], *(each["label"] for each in found["scenarios"])] == labels
    assert found["scenarios"][0]["sizes"] == found["recorded"]["sizes"]
    assert found["scenarios"][1]["worker_hours"] < found["scenarios"][2]["worker_hours"]
    assert "It is not measured" in " ".join(text.split())
    assert plot.read_text().startswith("<svg")
    assert all(label in plot.read_text() for label in labels)


def test_options_of_the_other_question_are_refused(log: Path) -> None:
    """Neither is ignored."""
    assert refused(log, "replay", "what-if", "--scale", "--policy", "kv") == (
        "--policy is of routes: with --scale, leave it out"
    )
    assert refused(log, "replay", "what-if", "--slo", "ttft=1") == (
        "--slo, --plot and --role are of the planner's decisions: add --scale"
    )
    assert "ends in .svg" in refused(log, "replay", "what-if", "--scale", "--plot", "sizes.png")
    assert "--slo: tft is no bound of service" in refused(log, "replay", "what-if", "--scale", "--slo", "tft=1")
