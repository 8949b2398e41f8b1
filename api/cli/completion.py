"""`contrail --install-completion`: commands and options completed by the shell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from api.config.data_folder import write_whole
from core.errors import CallerError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_CONTRAIL_COMPLETE"
"""Variable by which the shell asks the command for completions, as click has it."""
READABLE = 0o644


def install_completion(command: click.Command, environment: Mapping[str, str]) -> str:
    """The completion script of the user's shell is in its file; returns a sentence with the file and the next step.

    CallerError if SHELL names no shell of SHELLS, or the file cannot be written.
    """
    shell = Path(environment.get("SHELL", "")).name
    if shell not in SHELLS:
        raise CallerError(f"SHELL is {shell or 'not set'}; completions are for {', '.join(SHELLS)}")
    file = script_file(shell, environment)
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(command, {}, "contrail", VARIABLE).source()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, script.encode(), READABLE)
    except OSError as error:
        raise CallerError(f"{file} cannot be written: {error.strerror}") from error
    step = f"add `fpath+=({file.parent}); autoload -Uz compinit; compinit` to .zshrc, and " if shell == "zsh" else ""
    return f"wrote {file}: {step}start a new shell"


def script_file(shell: str, environment: Mapping[str, str]) -> Path:
    """The file from which this shell loads completions of `contrail` for the user."""
    home = Path(environment.get("HOME", "~")).expanduser()
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = {
        "bash": data / "bash-completion" / "completions" / "contrail",
        "zsh": data / "zsh" / "site-functions" / "_contrail",
        "fish": config / "fish" / "completions" / "contrail.fish",
    }
    return files[shell]
