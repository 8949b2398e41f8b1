"""Dependencies have upper bounds; of those with internals that we use, a version outside its range is one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from core.dependencies import check_dependency
from core.errors import CallerError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]


def comparable(name: str) -> str:
    return name.lower().replace("_", "-")


def test_every_dependency_has_an_upper_bound_and_the_lock_lies_below_it() -> None:
    """The next major version of a library, or the next minor one of a 0.x, is not installed by itself."""
    lock = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "requirements-cpu.txt").read_text(), re.MULTILINE))
    locked = {comparable(name): version for name, version in lock.items()}
    needed = [Requirement(each) for each in DECLARED]

    assert [str(each) for each in needed if not {bound.operator for bound in each.specifier} & {"<", "=="}] == []
    assert [
        f"{each}, and {locked[comparable(each.name)]} is locked"
        for each in needed
        if comparable(each.name) in locked and not each.specifier.contains(locked[comparable(each.name)])
    ] == []


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package declares what the project's file declares, though it was installed from an older one."""
    monkeypatch.setattr(metadata, "requires", lambda _name: PROJECT["dependencies"])


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("name", ["nats-py", "uvicorn"])
def test_what_is_installed_fits(name: str) -> None:
    """The environment of these tests has a version of the range."""
    check_dependency(name)


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("installed", ["2.16.0", "2.16.7", "2.16.1.post1"])
def test_a_version_of_the_range_fits(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    """Any patch does."""
    monkeypatch.setattr(metadata, "version", lambda _name: installed)

    check_dependency("nats-py")


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("installed", ["2.9.0", "2.15.9", "2.17", "2.17.0rc1", "2.17.0", "3.0.0"])
def test_a_version_outside_the_range_is_one_sentence(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    """It names what is installed, what is needed, and the command that gets it."""
    monkeypatch.setattr(metadata, "version", lambda _name: installed)

    with pytest.raises(CallerError) as caught:
        check_dependency("nats-py")

    assert str(caught.value) == (
        f"nats-py {installed} is installed, and Contrail needs nats-py>=2.16,<2.17, because it uses that library's "
        f"internals: run {sys.executable} -m pip install 'nats-py>=2.16,<2.17'"
    )


@pytest.mark.parametrize("library", ["nats-py", "uvicorn"])
@pytest.mark.parametrize("command", ["frontend", "worker"])
def test_front_ends_and_workers_say_so_before_they_start(tmp_path: Path, command: str, library: str) -> None:
    """A planted version 0.1 is found first on the path: one sentence, status 2."""
    planted = tmp_path / f"{library.replace('-', '_')}-0.1.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 0.1\n")

    ran = subprocess.run(
        [sys.executable, "-m", "api.cli", command, "--data", str(tmp_path / "data")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ran.stderr.startswith(f"contrail: {library} 0.1 is installed, and Contrail needs {library}")
    assert ran.stderr.count("\n") == 1
    assert ran.returncode == 2
