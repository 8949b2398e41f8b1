"""The shipped files, written into a folder from a checkout and from a built wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.init import FIRST, SOURCE, init, shipped_files
from api.cli.main import contrail
from api.config.loading import load
from core.errors import CallerError


def run(*words: str) -> str:
    result = CliRunner().invoke(init, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_all_files_are_written(tmp_path: Path) -> None:
    """As they are in the repository; every deployment file can be read."""
    written = json.loads(run(str(tmp_path / "new"), "--json"))["written"]
    assert len(written) == len(shipped_files()) >= 8
    for name, source in shipped_files().items():
        assert (tmp_path / "new" / name).read_bytes() == source.read_bytes()
    for file in (tmp_path / "new").rglob("*.yaml"):
        load(file, environment={})


def test_no_file_is_overwritten_without_force(tmp_path: Path) -> None:
    """Then none of the others is written either; with --force all are."""
    own = tmp_path / FIRST
    own.parent.mkdir()
    own.write_text("mine")
    with pytest.raises(CallerError, match=r"agg-router\.yaml exists: .*--force"):
        CliRunner().invoke(init, [str(tmp_path)], catch_exceptions=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert own.read_text() == "mine"
    assert f"next: contrail up -f {own}" in run(str(tmp_path), "--force")
    assert own.read_bytes() == shipped_files()[FIRST].read_bytes()


def test_the_list_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has a purpose."""
    monkeypatch.chdir(tmp_path)
    listed = json.loads(run("--list", "--json"))["files"]
    assert {each["file"] for each in listed} == set(shipped_files())
    assert all(each["purpose"] for each in listed)
    assert list(tmp_path.iterdir()) == []
    assert "deploy/agg.yaml" in CliRunner().invoke(contrail, ["init", "--list"]).output


def test_a_wheel_has_all_files(tmp_path: Path) -> None:
    """Its `contrail init` writes them without the repository."""
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=SOURCE,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    with zipfile.ZipFile(tmp_path / made.stdout.split()[-1]) as wheel:
        wheel.extractall(tmp_path / "installed")
    command = [
        sys.executable,
        "-P",
        "-c",
        "from api.cli.init import SOURCE, init; print(SOURCE); init()",
        str(tmp_path / "there"),
    ]
    environment = {"PYTHONPATH": str(tmp_path / "installed")}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines()[0] == str(tmp_path / "installed")
    written = {file.relative_to(tmp_path / "there").as_posix() for file in (tmp_path / "there").rglob("*.*")}
    assert written == set(shipped_files())
    assert (tmp_path / "installed" / "contrail_shipped").is_dir()
