"""The command line as a whole."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.cli.main import COMMANDS, LazyCommand, contrail
from api.cli.output import EXIT_INTERRUPTED
from core.keys import DeploymentKey


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


@pytest.mark.parametrize(
    ("waits_in", "words"),
    [
        ("api.cli.inspect.events._print", ["events", "--follow"]),
        ("api.cli.inspect.replicas._watch", ["replicas", "--watch"]),
    ],
)
def test_commands_that_wait_for_the_next_event_are_interrupted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_in: str, words: list[str]
) -> None:
    """Ctrl-C is how they end, and the status is that of all commands but `up`."""

    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    key = tmp_path / "key"
    DeploymentKey.load_or_create(key)
    addresses = ["--nats", "nats://a:1", "--etcd", "e:2", "--namespace", "prod", "--key-file", str(key)]
    monkeypatch.setattr(waits_in, interrupted)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = CliRunner().invoke(contrail, [*words, *addresses])
    assert (result.exit_code, result.output.strip()) == (EXIT_INTERRUPTED, "")
