"""An export of a deployment that served: read when nothing runs any more, proved with a copy of the key."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from core.keys import DeploymentKey
from core.subjects import JOBS, LOAD, ROUTING, kv_stream
from projections.policy.decide import decide
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.chain_proof import gaps_of
from replay.verify.evidence import Evidence
from streams.archive.archive_reader import ArchiveReader
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

MARKER = "zebra crossing at noon"
LONG = f"Tell me about the {MARKER}, and leave out nothing at all, please. " * 6
NAMES = (b"decode-0", b"decode-1", b"frontend-0", b"frontend-1", b"127.0.0.1")


async def test_an_export_outlives_its_deployment(tmp_path: Path) -> None:
    """Every decision comes out of it, with names and without; no prompt stands in it, and no key."""
    data, file = tmp_path / "data", tmp_path / "all.contrail"
    async with up(data, "--engine", "simulated", "--replicas", "2") as running:
        await asyncio.gather(*(ask(running, number) for number in range(8)))
        await eventually(lambda: not running.state("frontend-0")["ahead"], "the log has all")
        await command("snapshots", "take", "--data", str(data))
        await asyncio.gather(*(ask(running, number) for number in range(8)))
        await eventually(lambda: not running.state("frontend-0")["ahead"], "the log has all")
        said = await command("export", str(file), "--data", str(data), "--json")
        assert "exists" in (await asyncio.to_thread(contrail, "export", str(file), "--data", str(data))).stderr
        held = {stream: await running.events(stream) for stream in (kv_stream(0), JOBS, LOAD, ROUTING)}
    key = shutil.copy(data / "key", tmp_path / "key")
    shutil.rmtree(data)
    assert set(said["streams"]) == set(held)
    assert said["from"] < said["to"]
    assert (len(said["snapshots"]), said["warnings"]) == (1, [])
    await asyncio.to_thread(_reads_alone, file, Path(key))
    part, redacted = tmp_path / "part.contrail", tmp_path / "redacted.contrail"
    request = _requests(file)[-1]
    said = await command("export", str(part), "--log", str(file), "--from", request, "--json")
    assert said["base"] == said["snapshots"][0]
    assert _requests(part)[-1] == request
    said = await command("export", str(redacted), "--log", str(file), "--redact", "--key-file", str(key), "--json")
    assert said["foreign_request_ids"] == 0
    await asyncio.to_thread(_reads_alone, redacted, None)
    assert all(name in everything(file) for name in NAMES)
    assert not any(name in everything(redacted) for name in NAMES)


async def ask(running: Running, number: int) -> None:
    await running.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": f"{number % 2} {LONG}"}], max_tokens=8, temperature=0
    )


async def command(*words: str) -> Any:
    """What it says as JSON, or nothing."""
    done: subprocess.CompletedProcess[str] = await asyncio.to_thread(contrail, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in words else None


def _reads_alone(file: Path, key: Path | None) -> None:
    loaded = DeploymentKey.load(key) if key is not None else None
    with Recording.open(file, loaded) as recording:
        assert recording.proved == (loaded is not None)
        state = recording.state_at(recording.end)
        assert (state.gaps_found, state.incomplete) == (0, 0)
        found = list(Playback(recording, gaps=Gaps()))
        assert len({it.event.request for it in found}) == 16  # a worker may decline one, which is decided on again
        playback = Playback(recording, gaps=gaps_of(recording))
        for it in playback:
            assert not Evidence(playback).known(it)
            decision = decide(it.view, it.request, it.settings, it.event.now_ms, it.event.seed)
            assert decision.digest == it.event.digest
    whole = everything(file)
    assert MARKER.encode() not in whole
    if loaded is not None:
        assert loaded.secret not in whole
        assert loaded.secret.hex().encode() not in whole
        assert loaded.chain_key.hex().encode() not in whole


def _requests(file: Path) -> list[str]:
    with Recording.open(file) as recording:
        return [it.event.request for it in Playback(recording, gaps=Gaps())]


def everything(file: Path) -> bytes:
    """All that can be read in the file, unpacked."""
    with ArchiveReader.open(file) as archive:
        parts = [archive.contents.to_bytes(), *(archive.snapshot(manifest) for manifest in archive.snapshots())]
        parts += [record.payload for stream in archive.streams for record in archive.read(stream)]
    return b"\n".join(parts)
