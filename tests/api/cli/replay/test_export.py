"""`contrail export`: from a real log and from other exports, whole, in part, without names; and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from api.cli.output import show_progress
from api.cli.replay.export import export
from api.cli.replay.recording_source import RecordingSource, recording_options
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.errors import CallerError, Corrupt
from core.event_json import time_text
from core.events import Event, ReplicaJoined
from core.ids import SourceId, StreamName, StreamSeq, new_id
from core.keys import DeploymentKey
from core.subjects import LOAD, ROUTING, SNAPSHOTS, kv_stream, subject
from projections.runner.rebuild import take_snapshot
from replay.recording.recording import Recording
from streams.archive.archive_reader import ArchiveReader
from streams.embedded.embedded_etcd import EmbeddedEtcd
from streams.embedded.embedded_nats import EmbeddedNats
from streams.snapshot_store import SnapshotStore
from tests.api.deployed import Deployed, deployed
from tests.projections.facts import joined, load, routed, stored

KV = kv_stream(0)
KEYS = {
    "file", "size_bytes", "messages", "from", "to", "streams", "snapshots", "ranged", "base", "base_time", "cut",
    "redacted", "names_replaced", "foreign_request_ids", "key_included", "warnings", "took_s",
    "request", "decisions",
}  # fmt: skip


class Spoken:
    """A worker and a replica that say things in the real log."""

    def __init__(self, here: Deployed) -> None:
        self.here = here
        self.worker, self.replica = new_id(), new_id()
        self.key = here.connection.key.chain_key
        self._requests = count()
        self._chains: dict[tuple[StreamName, str], tuple[int, bytes, StreamSeq]] = {}

    async def say(self, stream: StreamName, source: str, *events: Event) -> StreamSeq:
        n, head, last = self._chains.get((stream, source), (0, CHAIN_START, StreamSeq(0)))
        payload = encode_message(SourceId(source), n, head, 0, [encode_event(event) for event in events])
        name = subject(self.here.connection.namespace, stream, source)
        seq = await self.here.log.append(stream, name, payload, f"{stream}:{source}:{n}", last)
        self._chains[stream, source] = n + 1, digest(payload, self.key), seq
        return seq

    async def grow(self, messages: int = 3) -> None:
        for number in range(messages):
            await asyncio.sleep(0.003)  # moments of different streams are told apart by the millisecond
            await self.say(KV, self.worker, stored(number))
            await self.say(LOAD, self.worker, load(number))
            await self.say(ROUTING, self.replica, routed(f"req-{next(self._requests):016x}", self.worker))

    async def snapshot(self, fence: int) -> str:
        store = SnapshotStore(self.here.log, self.here.connection.namespace, self.key)
        manifest = await take_snapshot(self.here.log, store, self.key, "lynx-0", fence, 1_700_000_000_000 + fence)
        return manifest.id


@pytest.fixture
async def here(tmp_path: Path, nats_server: EmbeddedNats, etcd_server: EmbeddedEtcd) -> AsyncIterator[Deployed]:
    async with deployed(tmp_path, nats_server, etcd_server) as it:
        yield it


@pytest.fixture
async def spoken(here: Deployed) -> Spoken:
    """Twelve messages, a snapshot, nine more."""
    it = Spoken(here)
    await here.log.ensure([SNAPSHOTS])
    await it.say(KV, it.worker, joined("zebra-7"))
    await it.say(ROUTING, it.replica, ReplicaJoined(name="lynx-0", version="1"))
    await it.grow()
    await it.snapshot(1)
    await it.grow()
    return it


async def ok(here: Deployed, *words: str) -> Any:
    status, said = await here.json(export, *words)
    assert status == 0
    assert set(said) == KEYS
    return said


async def refused(here: Deployed, *words: str) -> str:
    result = await here.run(export, *words)
    assert isinstance(result.exception, (CallerError, Corrupt)), result.exception
    assert "\n" not in str(result.exception)
    return str(result.exception)


def left(folder: Path) -> set[str]:
    """Whatever stands there and is no key or deployment file."""
    return {path.name for path in folder.iterdir()} - {
        p.name for p in folder.iterdir() if p.suffix in {".json", ".key"}
    }


async def test_all_of_a_log(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """One line says what it is; nothing else is left beside it; who has the key can prove it."""
    path = tmp_path / "all"
    result = await here.run(export, str(path))
    assert result.exit_code == 0, result.exception
    (line,) = result.stdout.splitlines()
    assert line.startswith(f"{path}: 20 messages in ")
    assert "1 snapshot;" in line
    assert "key stays behind" in line
    assert left(tmp_path) == {"all"}
    assert here.connection.key.chain_key not in path.read_bytes()
    assert here.connection.key.secret not in path.read_bytes()
    with Recording.open(path, here.connection.key) as recording:
        assert recording.proved
        state = recording.state_at(recording.end)
        assert (state.gaps_found, state.incomplete) == (0, 0)
        assert len(state.alive()) == 1
    said = await ok(here, str(tmp_path / "again"))
    assert said["streams"]["kv_0"] == {"first_seq": 1, "last_seq": 7, "messages": 7}
    assert (said["messages"], said["base"], said["cut"], said["warnings"]) == (20, None, {}, [])
    assert len(said["snapshots"]) == 1


async def test_a_range(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """Behind the snapshot before it; moments of every kind; a range without anything in it is refused."""
    said = await ok(here, str(tmp_path / "part"), "--from", "routing:6", "--to", "kv:7")
    assert said["base"] == said["snapshots"][0]
    assert said["streams"]["kv_0"] == {"first_seq": 5, "last_seq": 6, "messages": 2}
    assert said["streams"]["routing"]["first_seq"] == 5
    result = await here.run(export, str(tmp_path / "text"), "--from", "routing:6")
    assert "with all since the snapshot before (of 2023-11-14T22:13:20.001Z), 1 snapshot;" in result.stdout
    said = await ok(here, str(tmp_path / "early"), "--from", "routing:2", "--to", "2999-01-01")
    assert (said["base"], said["messages"], said["ranged"]) == (None, 20, True)
    said = await ok(here, str(tmp_path / "request"), "--from", "req-0000000000000001")
    assert said["base"] is None
    said = await ok(here, str(tmp_path / "cursor"), "--from", "kv:5,load:4,routing:5")
    assert said["streams"]["load"]["first_seq"] == 4
    for words, asked in (
        (("--from", "2999-01-01"), "from 2999-01-01T00:00:00.000Z up to its end"),
        (("--from", "kv:5", "--to", "kv:5"), "from kv_0:5 up to kv_0:5"),
        (("--to", "2001-01-01"), "from its start up to 2001-01-01T00:00:00.000Z"),
    ):
        why = await refused(here, str(tmp_path / "none"), *words)
        assert "has nothing between these moments: it reaches from 20" in why
        assert f"Z, and asked for is what lies {asked} (UTC)" in why
    assert "lies beyond the end" in await refused(here, str(tmp_path / "none"), "--from", "kv:99")
    assert "no request that the log knows" in await refused(here, str(tmp_path / "none"), "--from", "nobody")
    assert left(tmp_path) == {"part", "text", "early", "request", "cursor"}


async def test_nothing_is_overwritten_unasked(
    here: Deployed, spoken: Spoken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor written where it cannot be; a file that was there stays until another one is whole."""
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    assert "name another file, or overwrite it with --force" in await refused(here, str(path))
    assert "has nothing" in await refused(here, str(path), "--force", "--from", "2999-01-01")
    assert path.read_bytes() == b"mine"
    assert (await ok(here, str(path), "--force"))["messages"] == 20
    with ArchiveReader.open(path) as found:
        assert found.messages == 20
    assert "is a folder" in await refused(here, str(tmp_path))
    assert "there is no folder" in await refused(here, str(tmp_path / "no" / "file"))
    assert left(tmp_path) == {"file"}
    late = tmp_path / "late"
    monkeypatch.setattr("api.cli.replay.export.summarize_export", lambda *_: late.write_bytes(b"somebody else's"))
    assert "exists" in await refused(here, str(late))
    assert late.read_bytes() == b"somebody else's"
    assert left(tmp_path) == {"file", "late"}


async def test_a_head_that_is_gone_is_said(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """Plainly, with the place from which on decisions can be made again."""
    name = f"contrail_{here.connection.namespace}_kv_0"
    await here.log._connection.call(f"$JS.API.STREAM.PURGE.{name}", {"seq": 3})
    result = await here.run(export, str(tmp_path / "cut"))
    _, warning = result.stdout.splitlines()
    assert warning == (
        "warning: retention took the head of the log (kv_0 begins at 3), and no snapshot lies before what is left: "
        "decisions before the snapshot of 2023-11-14T22:13:20.001Z can be shown, but not made again"
    )
    said = await ok(here, str(tmp_path / "json"), "--from", "routing:3")
    assert (said["cut"], said["streams"]["kv_0"]["first_seq"]) == ({"kv_0": 3}, 3)
    assert len(said["warnings"]) == 1
    assert (await ok(here, str(tmp_path / "behind"), "--from", "routing:6"))["warnings"] == []


async def test_of_another_export(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """A range of it, with the key or without; a moment counts back from its end; and no server is asked."""
    whole = tmp_path / "all"
    await ok(here, str(whole))
    key = str(next(tmp_path.glob("*.key")))
    for name, words in (("keyed", ("--key-file", key)), ("keyless", ())):
        said = await alone(tmp_path / name, "--log", str(whole), "--from", "routing:6", *words)
        assert said["base"] == said["snapshots"][0]
        assert said["streams"]["kv_0"] == {"first_seq": 5, "last_seq": 7, "messages": 3}
        with Recording.open(tmp_path / name, here.connection.key) as found, ArchiveReader.open(whole) as source:
            assert found.archive.contents.heads == source.contents.heads
            assert found.archive.contents.key_check == source.contents.key_check
            assert found.state_at(found.end).gaps_found == 0
    said = await alone(tmp_path / "back", "--log", str(whole), "--from", "-1h")
    assert said["messages"] == 20
    assert said["to"] < time_text(2**42)
    other = tmp_path / "other.key"
    DeploymentKey.load_or_create(other)
    result = await run("x", "--log", str(whole), "--key-file", str(other))
    assert "the key is not that of the deployment" in str(result.exception)
    result = await run("x", "--log", str(whole), "--nats", "nats://127.0.0.1:1")
    assert "not both" in str(result.exception)


async def test_without_names(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """At once or from an export; cut again it is still without; foreign ids and what else stays are said."""
    await spoken.say(ROUTING, spoken.replica, routed("for-mr-smith", spoken.worker))
    result = await here.run(export, str(tmp_path / "direct"), "--redact")
    line, warning = result.stdout.splitlines()
    assert "2 names replaced" in line
    assert "key stays" not in line
    chosen = "1 request id was chosen by clients (ours are req-…)"
    assert warning == f"warning: {chosen}: it stays: check that it names no person"
    await ok(here, str(tmp_path / "all"))
    key = str(next(tmp_path.glob("*.key")))
    said = await alone(tmp_path / "later", "--log", str(tmp_path / "all"), "--redact", "--key-file", key)
    assert (said["redacted"], said["names_replaced"], said["foreign_request_ids"]) == (True, 2, 1)
    said = await alone(tmp_path / "keyless", "--log", str(tmp_path / "all"), "--redact")
    assert "key was not at hand" in said["warnings"][-1]
    said = await alone(tmp_path / "cut", "--log", str(tmp_path / "later"), "--from", "routing:6")
    assert said["redacted"]
    await alone(tmp_path / "twice", "--log", str(tmp_path / "later"), "--redact")
    for name in ("direct", "later", "keyless", "cut", "twice"):
        with Recording.open(tmp_path / name) as found:
            assert found.archive.contents.namespace == "redacted"
            state = found.state_at(found.end)
            assert (state.gaps_found, state.incomplete) == (0, 0)
            assert [member.joined.name for member in state.alive() if member.joined] == ["worker-1"]


async def test_damage_is_one_sentence(here: Deployed, spoken: Spoken, tmp_path: Path) -> None:
    """One byte of one event changed: refused, and nothing is made of it."""
    path = tmp_path / "all"
    await ok(here, str(path))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    result = await run(str(tmp_path / "x"), "--log", str(path))
    assert isinstance(result.exception, Corrupt)
    assert "their checksum is another" in str(result.exception)
    assert left(tmp_path) == {"all"}


async def run(*words: str) -> Result:
    """On another thread, as the command has a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, export, list(words))


async def alone(path: Path, *words: str) -> Any:
    """Without a deployment."""
    result = await run(str(path), *words, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


# --- which key -------------------------------------------------------------------------------------------------


@click.command()
@recording_options
def proved(source: RecordingSource) -> None:
    """Whether the recording has the key."""
    with source.opened() as recording:
        click.echo(recording.proved)


async def test_the_key_at_hand_is_taken(
    here: Deployed, spoken: Spoken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the usual data folder, or of the environment, if it is the right one; one that is given must be."""
    path, data, other = tmp_path / "all", tmp_path / "home" / "data", tmp_path / "home" / "other"
    await ok(here, str(path))
    right = next(tmp_path.glob("*.key"))
    data.mkdir(parents=True)
    other.mkdir()
    monkeypatch.chdir(tmp_path / "home")

    def asked(*words: str, **environment: str) -> Any:
        result = CliRunner().invoke(proved, ["--log", str(path), *words], env=environment)
        return result.stdout.strip() if result.exit_code == 0 else str(result.exception)

    assert asked() == "False"
    (data / "key").write_text("rubbish")
    assert asked() == "False"
    (data / "key").unlink()
    DeploymentKey.load_or_create(data / "key")
    assert asked() == "False"
    assert "not that of the deployment" in asked("--data", "data")
    assert asked(CONTRAIL_KEY_FILE="data/key") == "False"
    assert asked(CONTRAIL_KEY_FILE=str(right)) == "True"
    (other / "key").write_text(right.read_text())
    assert asked(CONTRAIL_DATA="other") == "True"
    assert asked(CONTRAIL_DATA="other", CONTRAIL_KEY_FILE="data/key") == "True"
    assert asked("--data", "other") == "True"
    assert asked("--key-file", str(right)) == "True"
    assert "no deployment key at" in asked("--key-file", "nothing")
    (data / "key").write_text(right.read_text())
    assert asked() == "True"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said now and then, and nothing is left of it at the end; into a file nothing is said."""
    monkeypatch.setattr("api.cli.output.PROGRESS_EVERY_S", 0)
    tell = show_progress("reading")
    for done in range(4):
        tell(done, 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tell = show_progress("reading")
    for done in range(4):
        tell(done, 3)
    assert capsys.readouterr().err == "".join(f"\rreading: {n} of 3 messages" for n in range(3)) + "\r\x1b[K"
