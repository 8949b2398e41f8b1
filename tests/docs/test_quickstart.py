"""The commands of the front page and of the quickstart, run for real: simulated engines, real NATS and etcd."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, FRONT, ROOT
from tests.fixtures.own_ports import own_port

READY_S = 120
END_S = 60
LOG_S = 15
"""The end of a request is in the log so soon."""
PORT = "8000"
"""The port that the pages name."""


def section_commands(page: Path, heading: str) -> list[str]:
    """The commands of a section's shell blocks; a continued line is one command."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    shell = "".join(part.partition("```")[0] for part in section.split("```sh\n")[1:])
    return shell.replace("\\\n", " ").splitlines()


def folder_with_contrail(folder: Path) -> Path:
    """A folder with `.venv/bin/contrail`, as after the installation."""
    script = folder / ".venv" / "bin" / "contrail"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec {sys.executable} -P -m api.cli "$@"\n')
    script.chmod(0o755)
    return folder


@contextmanager
def running(command: str, folder: Path, port: int) -> Iterator[None]:
    """The deployment that the command starts, ready."""
    output = folder / "up.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command.split(),
            cwd=folder,
            env={**os.environ, "CONTRAIL_PORT": str(port)},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end_s = time.monotonic() + READY_S
        while b"Ready after" not in output.read_bytes():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end_s, output.read_text()
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0, output.read_text()


def run(command: str, folder: Path) -> str:
    """What the command prints; it ends well within LOG_S, because the log takes a moment to have a request's end."""
    end_s = time.monotonic() + LOG_S
    while True:
        ended = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        if not ended.returncode:
            return ended.stdout
        assert time.monotonic() < end_s, f"{command}\n{ended.stdout}{ended.stderr}"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("page", "heading"), [(FRONT, "Try it in a minute"), (DOCS / "quickstart.md", "In a minute")], ids=["front", "docs"]
)
def test_the_first_minute(page: Path, heading: str, tmp_path: Path) -> None:
    """After the installation every command of the section runs, one after the other, and says what it is for."""
    venv, install, up, *rest = section_commands(page, heading)
    assert (venv, install) == ("python3.11 -m venv .venv", ".venv/bin/pip install -e .")
    folder, port = folder_with_contrail(tmp_path), own_port()
    with running(up, folder, port):
        printed = [run(command.replace(PORT, str(port)), folder) for command in rest]
    answer, explained, *_ = printed
    assert '"content":' in answer
    assert "request first" in explained
    assert any(re.search(r"decisions? follows? from the log", text) for text in printed), printed
    assert all(printed)
