"""The programs at their pinned versions, from their registries, in `.agents` of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".agents"
NPM_PINS = HERE / "package.json"
PIP_PINS = HERE / "requirements.txt"
PROGRAMS = (*(f"node_modules/.bin/{name}" for name in ("claude", "codex", "opencode", "qwen")), "aider/bin/aider")
LINKING = ("@anthropic-ai/claude-code/install.cjs", "opencode-ai/postinstall.mjs")
NODE_MIN = 20
INSTALL_S = 900.0


class Missing(Exception):
    """What is needed to install the programs is not there; the text says what to do."""


def installed() -> Path:
    """The folder with all programs at the pinned versions. Missing if they cannot be installed; takes minutes once.

    A folder that holds these pins already is taken as it is.
    """
    stamp = FOLDER / "installed.txt"
    pins = f"{FOLDER}\n{NPM_PINS.read_text()}{PIP_PINS.read_text()}"
    whole = all((FOLDER / path).exists() for path in PROGRAMS)
    if not (whole and stamp.is_file() and stamp.read_text() == pins):
        _check_node()
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        _install_npm()
        _install_aider()
        stamp.write_text(pins)
    return FOLDER


def versions() -> dict[str, str]:
    """The pinned version of each package."""
    npm: dict[str, str] = json.loads(NPM_PINS.read_text())["dependencies"]
    lines = [line.split("==") for line in PIP_PINS.read_text().splitlines() if "==" in line]
    return {**npm, **dict(lines)}


def _check_node() -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise Missing(f"`make test-agents` needs Node.js {NODE_MIN} or newer with npm: install both, then run it again")
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(said.removeprefix("v").partition(".")[0]) < NODE_MIN:
        raise Missing(
            f"`make test-agents` needs Node.js {NODE_MIN} or newer, and `node` is {said}: install a newer one"
        )


def _install_npm() -> None:
    """Prebuilt programs come as optional packages of their own; of the packages' scripts those that link them run."""
    shutil.copy(NPM_PINS, FOLDER / "package.json")
    quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error")
    _run("npm", "install", "--prefix", str(FOLDER), *quiet)
    for script in LINKING:
        _run("node", str(FOLDER / "node_modules" / script))


def _install_aider() -> None:
    """Into an environment of its own: it pins other versions of our own packages."""
    venv = FOLDER / "aider"
    _run(sys.executable, "-m", "venv", str(venv))
    _run(str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "-q", "-r", str(PIP_PINS))


def _run(*command: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise Missing(f"`{' '.join(command[:4])} …` failed; is its registry within reach?\n{said}")
