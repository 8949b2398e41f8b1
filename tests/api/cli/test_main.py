"""The command line as a whole."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from api.cli.main import COMMANDS, LazyCommand, contrail
from api.cli.output import EXIT_INTERRUPTED


@click.command()
def waits() -> None:
    """Somebody presses Ctrl-C meanwhile."""
    raise KeyboardInterrupt


def test_an_interrupted_command_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not 1, which is a no; and nothing is said of it. The help tells the status."""
    monkeypatch.setitem(COMMANDS, "waits", LazyCommand(f"{__name__}:waits", ""))
    result = CliRunner().invoke(contrail, ["waits"])
    assert (result.exit_code, result.output.strip()) == (EXIT_INTERRUPTED, "")
    assert f"{EXIT_INTERRUPTED} (Ctrl-C;" in " ".join(CliRunner().invoke(contrail, ["--help"]).output.split())
