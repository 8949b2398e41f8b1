"""`contrail simulate --planner` and `--slo`, as people and scripts use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from api.cli.main import contrail
from core.errors import CallerError
from tests.projections.scaling.profiles import PROFILE
from tests.replay.simulate.talks import talks, written


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "trace.jsonl", talks(count=8, turns=5, every_ms=800))


@pytest.fixture
def planner(tmp_path: Path) -> Path:
    path = tmp_path / "planner.yaml"
    path.write_text("planner: {slo: {attainment: 90, ttft_ms: 700}, startup_s: 5, max: 4}\n")
    return path


def found_json(*words: str | Path) -> Any:
    done = CliRunner().invoke(contrail, ["simulate", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(*words: str | Path) -> str:
    done = CliRunner().invoke(contrail, ["simulate", *map(str, words)])
    assert isinstance(done.exception, CallerError), done.output
    return str(done.exception)


def test_a_planned_fleet_has_its_cost_and_its_settings(trace: Path, planner: Path) -> None:
    """Bounds on the command line replace those of the file; the others stay."""
    found = found_json(trace, "--workers", "1", "--planner", planner, "--slo", "ttft=1500,itl=60")

    scaling = found["scaling"]
    assert (scaling["ttft_ms"], scaling["itl_ms"]) == (1500, 60)
    assert 0 < scaling["attainment"] <= 1
    assert scaling["worker_hours"] > 0
    assert found["simulated"]["planner"]["slo"] == {"ttft_ms": 1500, "itl_ms": 60, "attainment": 90.0}
    assert found["simulated"]["planner"]["startup_s"] == 5


def test_a_fixed_fleet_is_counted_by_the_same_bounds(trace: Path) -> None:
    """Its worker-hours are its size times the run."""
    found = found_json(trace, "--workers", "3", "--slo", "ttft=1000,itl=50")

    assert found["scaling"]["worker_hours"] == pytest.approx(3 * _hours(found))
    assert (found["scaling"]["workers_max"], found["scaling"]["starts"]) == (3, 0)
    assert "planner" not in found["simulated"]


def _hours(found: Any) -> float:
    return float(found["duration_s"]) / 3600


def test_without_bounds_nothing_is_added(trace: Path) -> None:
    """Answers keep the keys that they had."""
    found = found_json(trace, "--workers", "2")

    assert "scaling" not in found
    assert not {"slo", "planner", "bounds"} & found["simulated"].keys()


def test_a_sweep_takes_settings_of_the_planner(trace: Path, planner: Path) -> None:
    """Each point has its cost, in JSON and as a table."""
    words = (trace, "--workers", "1", "--planner", planner, "--sweep", "planner.attainment=50,99", "--jobs", "1")

    points = found_json(*words)["points"]
    assert [point["given"] for point in points] == [{"planner.attainment": 50}, {"planner.attainment": 99}]
    assert all(point["scaling"]["worker_hours"] > 0 for point in points)
    text = CliRunner().invoke(contrail, ["simulate", *map(str, words)], catch_exceptions=False).stdout
    assert "worker-hours" in text
    assert "planner.attainment 99" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--slo", "ttft=1000"), "exactly ttft=MS,itl=MS"),
        (("--slo", "speed=1"), "speed is no bound of service"),
        (("--sweep", "planner.max=2,3"), "there is no planner"),
    ],
)
def test_wrong_bounds_are_refused(trace: Path, words: tuple[str, ...], named: str) -> None:
    """Each with the option that is wrong."""
    assert named in refused(trace, "--workers", "2", *words)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("planner: {mx: 3}", "planner.mx"),
        ("planner: {slo: 3}", "planner.slo"),
        ("planner: {min: 5, max: 4}", "planner.min"),
        ("planner: {predictor: magic}", "planner.predictor"),
        ("planner: {predictor: arima}", "take constant, kalman or seasonal"),
        ("planner: {profile: 3}", "profile: 3 is no name of a file"),
        ("planner: {slo: {attainment: 101}}", "planner.attainment"),
        ("planner: {period_s: 0}", "planner.period_s"),
        ("planner: 3", "planner has no settings"),
    ],
)
def test_wrong_settings_are_refused(trace: Path, tmp_path: Path, text: str, named: str) -> None:
    """With the key, and what it may be."""
    (tmp_path / "wrong.yaml").write_text(text)

    assert named in refused(trace, "--workers", "2", "--planner", tmp_path / "wrong.yaml")


def test_a_planner_begins_with_a_measured_profile(trace: Path, tmp_path: Path) -> None:
    """The file is named beside the settings. A profile of a slow engine orders more workers at first."""
    slow = replace(PROFILE, prefill=tuple(replace(point, us=20 * point.us) for point in PROFILE.prefill))
    (tmp_path / "m.json").write_bytes(slow.encode())
    (tmp_path / "with.yaml").write_text(f"planner: {{profile: {tmp_path / 'm.json'}, startup_s: 5, max: 4}}")
    (tmp_path / "without.yaml").write_text("planner: {startup_s: 5, max: 4}")

    measured, exact = (
        found_json(trace, "--workers", "1", "--planner", tmp_path / name)["scaling"]
        for name in ("with.yaml", "without.yaml")
    )

    assert measured["starts"] > exact["starts"]
    assert measured["worker_hours"] > exact["worker_hours"]
    (tmp_path / "m.json").write_text("[]")
    assert "m.json is no profile" in refused(trace, "--workers", "1", "--planner", tmp_path / "with.yaml")


def test_both_roles_have_their_settings_and_their_cost(trace: Path, tmp_path: Path) -> None:
    """Prefill workers have the planner's settings, but for those of their own."""
    planner = tmp_path / "roles.yaml"
    planner.write_text("planner: {startup_s: 5, max: 4, prefill: {max: 2}}\n")

    found = found_json(trace, "--workers", "1", "--prefill-workers", "1", "--planner", planner)

    assert found["simulated"]["planner"]["prefill"] == {"max": 2}
    assert 0 < found["scaling"]["prefill_worker_hours"] < found["scaling"]["worker_hours"]
    text = CliRunner().invoke(
        contrail, ["simulate", str(trace), "--workers", "1", "--prefill-workers", "1", "--planner", str(planner)]
    )
    assert ", of prefill workers 0.0" in text.stdout


def test_settings_of_prefill_workers_need_some(trace: Path, tmp_path: Path) -> None:
    """And keys that can be their own."""
    planner = tmp_path / "roles.yaml"
    planner.write_text("planner: {prefill: {max: 2}}\n")
    assert "there are no prefill workers" in refused(trace, "--workers", "1", "--planner", planner)
    both = ("--workers", "1", "--prefill-workers", "1", "--planner", planner)
    planner.write_text("planner: {prefill: {maxx: 2}}\n")
    assert "planner.prefill.maxx" in refused(trace, *both)
    planner.write_text("planner: {prefill: 2}\n")
    assert "has no keys" in refused(trace, *both)
