"""Completion of commands in shells, and examples in the help of each command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.cli.completion import SHELLS, install_completion, script_file
from api.cli.main import contrail
from core.errors import CallerError


def commands(group: click.Command, ctx: click.Context, name: str) -> Iterator[tuple[str, click.Command]]:
    """All commands and groups with their whole names."""
    yield name, group
    if isinstance(group, click.Group):
        for each in group.list_commands(ctx):
            found = group.get_command(ctx, each)
            assert found is not None
            yield from commands(found, click.Context(found, parent=ctx, info_name=each), f"{name} {each}")


ALL = dict(commands(contrail, click.Context(contrail), "contrail"))


@pytest.mark.parametrize("name", ALL)
def test_every_help_has_examples(name: str) -> None:
    """In a line of its own, beginning with the command's whole name."""
    lines = [line.strip() for line in (ALL[name].help or "").splitlines()]
    assert any(line.startswith(f"{name} ") or line == name for line in lines)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_file(tmp_path: Path, shell: str) -> None:
    """Below the user's own folders; the sentence names it."""
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not here, and click asks it for its version")
    environment = {"SHELL": f"/usr/bin/{shell}", "HOME": str(tmp_path)}
    said = install_completion(contrail, environment)
    file = script_file(shell, environment)
    assert str(file) in said
    assert file.is_relative_to(tmp_path)
    assert f"_CONTRAIL_COMPLETE={shell}_complete" in file.read_text()
    elsewhere = {**environment, "XDG_DATA_HOME": str(tmp_path / "x"), "XDG_CONFIG_HOME": str(tmp_path / "x")}
    assert script_file(shell, elsewhere).is_relative_to(tmp_path / "x")


def test_another_shell_is_refused(tmp_path: Path) -> None:
    """In one sentence, and nothing is written."""
    with pytest.raises(CallerError, match="SHELL is tcsh; completions are for bash, zsh, fish"):
        install_completion(contrail, {"SHELL": "/bin/tcsh", "HOME": str(tmp_path)})
    with pytest.raises(CallerError, match="SHELL is not set"):
        install_completion(contrail, {"HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_the_option_installs_it(tmp_path: Path) -> None:
    """It needs no command, and starts none."""
    environment = {"SHELL": "/bin/fish", "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    result = CliRunner().invoke(contrail, ["--install-completion"], env=environment)
    assert result.exit_code == 0, result.output
    assert (tmp_path / ".config" / "fish" / "completions" / "contrail.fish").exists()


def test_bash_completes_with_the_file(tmp_path: Path) -> None:
    """Sourced by bash, the function offers the commands that begin so."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    environment = {"SHELL": bash, "HOME": str(tmp_path)}
    install_completion(contrail, environment)
    script = f"""
        source {script_file("bash", environment)}
        COMP_WORDS=(contrail re) COMP_CWORD=1
        _contrail_completion contrail
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ours = Path(sys.executable).parent
    path = os.pathsep.join((str(ours), os.environ["PATH"]))
    ran = subprocess.run(
        [bash, "-c", script], env={**os.environ, "PATH": path}, check=True, capture_output=True, text=True
    )
    assert {"restart", "replicas", "replay"} <= set(ran.stdout.split())
