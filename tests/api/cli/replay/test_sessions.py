"""`contrail sessions` as people and scripts use it, on an export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.main import contrail
from core.errors import CallerError
from replay.simulate.options import Options
from replay.simulate.simulation import simulate
from tests.replay.simulate.families import ENGINE, families

REQUESTS = 120


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests without sessions, of three tenants, on two workers with small caches."""
    path = tmp_path_factory.mktemp("sessions") / "log"
    options = Options(workers=2, engine=replace(ENGINE, capacity_blocks=40), replicas=2, lag_ms=50)
    arrivals = families(REQUESTS, every_us=30_000)
    simulate(options, [each._replace(tenant=f"t{n % 3}") for n, each in enumerate(arrivals)], archive=path)
    return path


def ask(*words: str) -> Result:
    return CliRunner().invoke(contrail, list(words))


def test_the_table_is_the_json(log: Path) -> None:
    """Both orders, with a limit and with tenants; the sentence stands in both."""
    for order in ("slowest", "lost"):
        words = ("sessions", f"--{order}", "--log", str(log), "--limit", "5", "--tenant", "t0", "--tenant", "t1")
        found, page = json.loads(ask(*words, "--json").stdout), ask(*words).stdout
        assert found["order"] == order
        assert len(found["sessions"]) == 5 < found["sessions_total"]
        assert f"5 of {found['sessions_total']} shown" in page
        assert found["text"] in page
        assert {each["tenant"] for each in found["sessions"]} <= {"t0", "t1"}
        rows = [line for line in page.splitlines() if line.startswith("request-")]
        assert [row.split()[0] for row in rows] == [each["session"] for each in found["sessions"]]


def test_each_worst_turn_can_be_explained(log: Path) -> None:
    """By the printed name and number, though no client named a session."""
    found = json.loads(ask("sessions", "--log", str(log), "--limit", "3", "--json").stdout)
    for each in found["sessions"]:
        turn = each["slowest_turn"]
        words = ("--session", each["session"], "--turn", str(turn["turn"]), "--log", str(log), "--json")
        assert json.loads(ask("explain", *words).stdout)["request"] == turn["request"]


def test_wrong_words_are_refused(log: Path) -> None:
    """Two orders at once, and a tenant without sessions."""
    for words in (("--slowest", "--lost"), ("--tenant", "nobody")):
        found = ask("sessions", "--log", str(log), *words)
        assert isinstance(found.exception, CallerError)
