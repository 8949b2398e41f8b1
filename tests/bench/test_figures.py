"""The command line that all measurements share: what it keeps, what it refuses, how it ends."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.figures import Figure, Measure, main, peer_python

FIRST, SECOND = Figure("first", 1.0, "s"), Figure("second", 2.0, "s", peer=4.0)

Run = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("bench.figures.signal.signal", lambda *_: None)

    def run(measure: Measure, *words: object, name: str = "it", extend: Any = None) -> None:
        monkeypatch.setattr(sys, "argv", ["it", *map(str, words)])
        main(name, measure, extend)

    return run


def both(_options: argparse.Namespace) -> Iterator[Figure]:
    yield FIRST
    yield SECOND


def venv(folder: Path, program: str) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    return folder


def test_the_file_has_all_options_and_all_figures(run: Run, tmp_path: Path) -> None:
    def extend(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--trace", type=Path)
        parser.add_argument("--sizes", type=int, nargs="+", default=(1, 2))

    file = tmp_path / "it.json"
    run(both, "--json", file, "--quick", "--trace", "a/b", extend=extend)

    kept = json.loads(file.read_bytes())
    assert kept["options"] == {"json": str(file), "quick": True, "trace": "a/b", "sizes": [1, 2]}
    assert (kept["name"], kept["quick"], kept["complete"]) == ("it", True, True)
    assert [(each["what"], each["ratio"]) for each in kept["figures"]] == [("first", None), ("second", 2.0)]


def test_what_was_measured_stays_if_the_next_figure_fails(run: Run, tmp_path: Path) -> None:
    def fails(_options: argparse.Namespace) -> Iterator[Figure]:
        yield FIRST
        raise RuntimeError("the second one")

    file = tmp_path / "it.json"
    with pytest.raises(RuntimeError, match="the second one"):
        run(fails, "--json", file)

    kept = json.loads(file.read_bytes())
    assert [each["what"] for each in kept["figures"]] == ["first"]
    assert not kept["complete"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(both, "--json", tmp_path / "nowhere" / "it.json")

    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "cannot be written: No such file or directory" in said.err
    assert not said.out


def test_where_nothing_is_measured_no_file_is_written_and_one_that_is_there_stays(run: Run, tmp_path: Path) -> None:
    for there in (False, True):
        file = tmp_path / f"{there}.json"
        if there:
            file.write_text("before")
        with pytest.raises(SystemExit) as ended:
            run(lambda _options: [], "--json", file)
        assert ended.value.code == 2
        assert file.exists() == there
    assert file.read_text() == "before"


def test_a_figure_that_does_not_hold_ends_the_program_with_1_once_all_is_kept(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "it.json"

    with pytest.raises(SystemExit, match=r"(?s)not as it must be:\nfirst .* LOST"):
        run(lambda _options: [FIRST._replace(holds=False, note="LOST"), SECOND], "--json", file)

    kept = json.loads(file.read_bytes())
    assert [each["holds"] for each in kept["figures"]] == [False, True]
    assert kept["complete"]


def test_only_a_measurement_with_a_peer_takes_its_environment(run: Run, tmp_path: Path) -> None:
    there = venv(tmp_path, "exit 0")

    for name in ("index", "routing", "frontdoor"):
        run(both, "--peer-venv", there, name=name)
    with pytest.raises(SystemExit) as ended:
        run(both, "--peer-venv", there, name="fold")

    assert ended.value.code == 2


@pytest.mark.parametrize(("name", "install"), [("index", "ai-dynamo-runtime==1.6.1"), ("routing", "ai-dynamo==1.6.1")])
def test_an_environment_without_the_peer_is_refused_before_anything_is_measured(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, install: str
) -> None:
    there = venv(tmp_path, "echo 'ModuleNotFoundError: No module' >&2; exit 1")

    with pytest.raises(SystemExit) as ended:
        run(both, "--peer-venv", there, name=name)

    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "(ModuleNotFoundError: No module)" in said.err
    assert install in said.err
    assert not said.out


def test_an_environment_without_python_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        peer_python(tmp_path)

    assert ended.value.code == 2
    assert f"there is no {tmp_path / 'bin' / 'python'}" in capsys.readouterr().err
