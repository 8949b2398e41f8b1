"""A result on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from api.auth.api_keys import ApiKey, add_key
from api.cli.output import print_result
from api.cli.renderer import PROBLEM, Mark

COMMAND = (sys.executable, "-m", "api.cli", "keys", "list")
EXPIRED = ApiKey(
    name="ci-nightly",
    tenant="team-a",
    sha256="0" * 64,
    expires=datetime(2020, 1, 1, tzinfo=UTC),
    models=("tiny", "a-model", "another-model", "one-more-model"),
)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """One key, which has expired."""
    file = tmp_path / "keys"
    add_key(file, EXPIRED)
    return file


def on_terminal(keys: Path, **environment: str) -> str:
    """What the command prints on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    try:
        done = subprocess.run(
            [*COMMAND, "--file", keys], stdout=theirs, env={**env, "COLUMNS": "80", **environment}, check=True
        )
        assert done.returncode == 0
        return os.read(ours, 10_000).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_terminal_has_width_and_colour(keys: Path) -> None:
    """NO_COLOR keeps it plain; COLUMNS is its width; a pipe has one line per row."""
    coloured, plain = on_terminal(keys), on_terminal(keys, NO_COLOR="1")
    assert click.style("(expired)", fg="yellow") in coloured
    assert click.unstyle(coloured) == plain
    assert max(map(len, plain.splitlines())) <= 80

    piped = subprocess.run([*COMMAND, "--file", keys], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert len(piped.splitlines()) == 2
    assert max(map(len, piped.splitlines())) > 80
    assert "\x1b" not in piped


def test_one_of_text_and_json_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe, without colour; JSON is indented."""
    found = {"gaps": 1}
    print_result(["gaps", Mark("1", PROBLEM)], found, as_json=False)
    assert capsys.readouterr().out == "gaps\n1\n"
    print_result(["gaps", Mark("1", PROBLEM)], found, as_json=True)
    assert capsys.readouterr().out == '{\n  "gaps": 1\n}\n'
