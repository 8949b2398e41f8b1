"""A deployment's key is changed: the log of both generations verifies, and the old key seals nothing new."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from core.codec import CHAIN_START, digest, encode_event, encode_message, generation_of, through
from core.ids import Epoch, SourceId, StreamName
from core.keys import DeploymentKey
from core.subjects import ROUTING, subject
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.e2e.deployment import contrail, up
from tests.projections.facts import joined

WORDS = ("--engine", "simulated", "--workers", "1", "--replicas", "1")


def rotate(data: Path) -> subprocess.CompletedProcess[str]:
    return contrail("deployment-key", "rotate", "--data", str(data))


def verified(log: Path, key: Path) -> tuple[int, dict[str, Any]]:
    """`contrail replay verify` of the export with that key file."""
    found = contrail("replay", "verify", "--log", str(log), "--key-file", str(key), "--json")
    assert found.stdout, found.stderr
    return found.returncode, json.loads(found.stdout)


async def ran(data: Path, asks: int, export: Path | None = None) -> None:
    """The deployment ran and answered."""
    async with up(data, *WORDS) as running:
        model = (await running.openai.models.list()).data[0].id
        for number in range(asks):
            await running.openai.completions.create(model=model, prompt=f"question {number}", max_tokens=2)
        if export is not None:
            busy = rotate(data)
            assert busy.returncode == 2
            assert "in use" in busy.stderr
            done = contrail("export", str(export), "--data", str(data))
            assert done.returncode == 0, done.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def test_the_log_of_two_generations_verifies(data: Path, tmp_path: Path) -> None:
    """Run, rotate, run again. Then an attacker with the old key writes on, and the operator forgets that key."""
    log = tmp_path / "log"
    await ran(data, 3)
    old = DeploymentKey.load(data / "key")
    assert rotate(data).returncode == 0
    assert (data / "key").stat().st_mode & 0o777 == 0o600
    new = DeploymentKey.load(data / "key")
    assert (new.generation, new.hash_seed) == (1, old.hash_seed)
    await ran(data, 3, log)

    status, found = verified(log, data / "key")
    assert (status, found["holds"], found["decisions"]) == (0, True, 6)
    assert found["verified"] == 6
    with ArchiveReader.open(log) as archive:
        generations = {generation_of(each.payload) for name in archive.streams for each in archive.read(name)}
    assert generations == {0, 1}

    forged = with_forgery(log, tmp_path / "forged", old, new)
    status, found = verified(forged, data / "key")
    assert (status, found["holds"]) == (1, False)
    assert [each["kind"] for each in found["chains"]["breaks"]] == ["retired"]
    assert "written with a retired key" in found["chains"]["breaks"][0]["what"]

    only_old = tmp_path / "old"
    only_old.write_text(old.to_text())
    refused = contrail("replay", "verify", "--log", str(log), "--key-file", str(only_old))
    assert refused.returncode == 2
    assert "the key is not that of the deployment" in refused.stderr

    assert contrail("deployment-key", "forget", "0", "--data", str(data)).returncode == 0
    status, found = verified(log, data / "key")
    assert (status, found["holds"], found["chains"]["broken"]) == (1, False, 0)
    assert found["chains"]["missing_generations"] == [0]
    assert found["chains"]["unproved"] > 0
    text = contrail("replay", "verify", "--log", str(log), "--key-file", str(data / "key")).stdout
    assert "not judged, the key generation 0 is missing" in text.splitlines()[0]
    assert "hold" not in text.splitlines()[0]
    await ran(data, 1)


def with_forgery(log: Path, path: Path, old: DeploymentKey, new: DeploymentKey) -> Path:
    """The export with a worker's chain behind it that the holder of the old key sealed."""
    source = SourceId("fe" * 8)
    with ArchiveReader.open(log) as archive:
        writer = ArchiveWriter(path, archive.contents.namespace, new.chain_key, "contrail test", 1)
        for stream in archive.streams:
            span = archive.span(stream)
            writer.open(stream, Epoch(span.epoch), span.first_seq, span.log_first_seq)
            for record in archive.read(stream):
                writer.add(record)
            if stream == ROUTING or not stream.startswith("kv"):
                continue
            prev, where = CHAIN_START, subject(archive.contents.namespace, StreamName(stream), source)
            for n in range(3):
                payload = encode_message(source, n, prev, 1, [encode_event(joined(name="forged"))])
                prev = digest(payload, through(old.chain_key, 0))
                seq = writer.last_seq(stream) + 1
                writer.add(Record(stream, seq, 1, where, payload))  # type: ignore[arg-type]
        writer.finish(writer.contents(0, 1))
    return path


def test_the_key_file_is_changed_alone(data: Path) -> None:
    """Commands need a key to change, and name what is wrong; `list` shows no secret."""
    assert contrail("deployment-key", "rotate", "--data", str(data)).returncode == 2
    data.mkdir()
    DeploymentKey.load_or_create(data / "key")
    (data / "journal").mkdir()
    (data / "journal" / "a.journal").touch()
    assert "start and stop the deployment" in rotate(data).stderr
    (data / "journal" / "a.journal").unlink()
    for _ in range(2):
        assert rotate(data).returncode == 0
    key = DeploymentKey.load(data / "key")
    listed = contrail("deployment-key", "list", "--data", str(data), "--json")
    assert json.loads(listed.stdout) == {"generation": 2, "known": [0, 1, 2]}
    assert key.secret.hex() not in listed.stdout
    named = contrail("deployment-key", "list", "--data", str(data), "--namespace", "prod", "--json")
    assert json.loads(named.stdout)["fingerprints"] == key.fingerprints("prod")
    text = contrail("deployment-key", "list", "--data", str(data), "--namespace", "prod").stdout
    assert text.splitlines()[3].split()[-1] == key.fingerprints("prod")["2"]
    assert contrail("deployment-key", "forget", "2", "--data", str(data)).returncode == 2
    assert contrail("deployment-key", "forget", "1", "--key-file", str(data / "key")).returncode == 0
    assert sorted(DeploymentKey.load(data / "key").older) == [0]
