"""A local user reads what lies in the data folder: addresses, keys, journals, logs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from api.cli.restart import running_deployment
from api.config.data_folder import OTHERS, DataFolder
from api.config.deployment_ref import find_by_data_folder
from core.errors import CallerError
from tests.e2e.deployment import up
from tests.fixtures.local_user import STRANGER_UID, LocalUser

READ = """
import json, os, socket, sys
readable, reached = [], []
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        try:
            open(path, "rb").close()
        except OSError:
            continue
        readable.append(os.path.relpath(path, sys.argv[1]))
try:
    run = json.load(open(os.path.join(sys.argv[1], "run.json")))
except OSError:
    run = {"parts": []}
for part in run["parts"]:
    for address in (part["ops"], part["address"]):
        if address:
            host, _, port = address.rpartition("//")[2].rpartition(":")
            socket.create_connection((host, int(port)), timeout=2).close()
            reached.append(address)
print(json.dumps({"readable": sorted(readable), "reached": reached}))
"""
"""Opens every file below a folder, and every address that run.json lists."""


async def test_another_user_reads_no_file_of_a_deployment(home: Path, local_user: LocalUser) -> None:
    """Also in a folder that an earlier run left open, and under a umask that closes nothing."""
    data, targets, file = home / "data", home / "targets.json", home / "deployment.yaml"
    (data / "logs").mkdir(parents=True)
    (data / "logs").chmod(0o755)
    data.chmod(0o755)
    file.write_text(f"version: 1\nmetrics_file: {targets}\n")
    umask = os.umask(0)
    try:
        async with up(data, "-f", str(file), "--engine", "simulated", "--workers", "1") as running:
            assert json.loads(local_user.run(READ, str(data))) == {"readable": [], "reached": []}
            for folder in (data, *(data / name for name in ("parts", "logs", "journal", "nats", "etcd"))):
                assert folder.stat().st_mode & OTHERS == 0, folder
            for path in (*data.iterdir(), *(data / "parts").iterdir(), *(data / "logs").iterdir()):
                assert path.name == "models" or path.stat().st_mode & OTHERS == 0, path
            assert f"closed {data} to other users" in data.with_suffix(".out").read_text()
            listed = json.loads(local_user.run("import sys; print(open(sys.argv[1]).read())", str(targets)))
            assert listed == json.loads((data / "metrics.json").read_text())
            assert [running.part("decode-0")["ops"]] in [group["targets"] for group in listed]
    finally:
        os.umask(umask)


def test_a_command_of_another_user_says_whose_folder_it_is(home: Path, local_user: LocalUser) -> None:
    data = DataFolder(home / "data")
    data.make()
    data.run.write_text("{}")
    os.seteuid(STRANGER_UID)
    try:
        for ask in (find_by_data_folder, lambda folder: running_deployment(DataFolder(folder), folder)):
            with pytest.raises(CallerError, match="is another user's: run this command as the user of its `contrail"):
                ask(data.path)
    finally:
        os.seteuid(0)
    assert local_user.home.exists()


def test_a_folder_that_is_not_the_deployments_alone_is_left_open_and_its_own_inside_are_closed(home: Path) -> None:
    """`--data .` in a project, or `/var/lib`: others need what lies beside it."""
    (home / "src").mkdir()
    folder = DataFolder(home)
    note = folder.make()
    assert home.stat().st_mode & OTHERS == 0o055
    assert note.startswith(f"other users of this machine may enter {home} (mode 755)")
    for inner in ("parts", "logs"):
        assert (home / inner).stat().st_mode & OTHERS == 0
    (home / "src").rmdir()
    home.chmod(0o1777)
    assert "(mode 1777)" in folder.make()
    home.chmod(0o750)
    assert folder.make().startswith(f"closed {home} to other users of this machine (its mode was 750)")
    assert home.stat().st_mode & OTHERS == 0
    assert folder.make() == ""
