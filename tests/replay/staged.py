"""A log made by hand, message by message on a clock of its own, with decisions that are truly made on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from actors.consistency.digest_checkpoints import DigestCheckpoints
from core.clock import ManualClock
from core.codec import CHAIN_START, Message, decode_message, digest, encode_event, encode_message
from core.events import Event, ReplicaJoined, ReplicaReported, RequestRouted, SettingsChanged
from core.events.routing import DECIDE_VERSION, PROGRAM_VERSION
from core.ids import Epoch, ReplicaId, RequestId, SourceId, StreamName, StreamSeq
from core.keys import DeploymentKey
from core.prompt import Prompt, hashes_from_bytes
from core.settings import RoutingSettings
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, kv_stream, owner, subject
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, encode
from projections.folds.state import State
from projections.policy.decide import decide, record
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from replay.playback.replica_state import ReplicaState
from replay.recording.recording import RecordedFrame, Recording
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.projections.facts import joined, load, prompt, worker_id

KV = kv_stream(0)
KEY = DeploymentKey(bytes(32))
START_MS = 1_700_000_000_000
A, B, C = worker_id(1), worker_id(2), worker_id(3)
R, S = ReplicaId("ee" * 8), ReplicaId("dd" * 8)
ASKED = prompt(1, 2, 3, 4, 5, 6)
HASHES = hashes_from_bytes(ASKED.hashes())
"""Of its six full blocks; behind them is one token more."""
Taken = tuple[Manifest, bytes]
"""A snapshot and its content."""


class Stage:
    """What everybody said, and replicas that decide at the cursors that a test gives them."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)
        self.skew_ms = 0
        """How far the clock of whoever speaks is ahead of the log's."""
        self.frames: dict[StreamName, list[RecordedFrame]] = {KV: [], LOAD: [], ROUTING: []}
        self._records: list[Record] = []
        self._chains: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._seats: dict[ReplicaId, ReplicaState] = {}

    def say(self, stream: StreamName, source: str, *events: Event, about: str = "") -> StreamSeq:
        """The log has one message more, now."""
        return self.store(stream, source, self.sealed(stream, source, *events), about=about)

    def sealed(self, stream: StreamName, source: str, *events: Event) -> bytes:
        """The next message of the source, which the log does not have yet."""
        n, head = self._chains.get((stream, source), (0, CHAIN_START))
        encoded = [encode_event(event) for event in events]
        return encode_message(SourceId(source), n, head, self.clock.now_ms + self.skew_ms, encoded)

    def store(self, stream: StreamName, source: str, payload: bytes, *, about: str = "") -> StreamSeq:
        """The same for a message that is sealed already."""
        message, head = decode_message(payload), digest(payload, KEY.chain_key)
        self._chains[stream, source] = message.n + 1, head
        return self._stored(stream, about or source, payload, message, head)

    def _stored(self, stream: StreamName, token: str, payload: bytes, message: Message, head: bytes) -> StreamSeq:
        seq, about = StreamSeq(len(self.frames[stream]) + 1), subject("test", stream, token)
        self.frames[stream].append(RecordedFrame(stream, seq, self.clock.now_ms, owner(about), head, message))
        self._records.append(Record(stream, seq, self.clock.now_ms, about, payload))
        return seq

    def replica(
        self,
        replica: ReplicaId = R,
        name: str = "r1",
        settings: RoutingSettings | None = None,
        program: str = PROGRAM_VERSION,
    ) -> None:
        """It is there, of this version of the program, and decides under these settings."""
        self.say(ROUTING, replica, ReplicaJoined(name=name, version=program))
        if settings is not None:
            self.settings(settings, replica)

    def settings(self, settings: RoutingSettings, replica: ReplicaId = R) -> None:
        """From now on it decides under these."""
        seat = self._seat(replica)
        event = SettingsChanged(revision=seat.revision + 1, settings=settings.to_mapping())
        seat.apply_own(self.say(ROUTING, replica, event), event)

    def pair(self) -> None:
        """Two workers are there, without load."""
        for name, worker in (("left", A), ("right", B)):
            self.say(KV, worker, joined(name))
            self.say(LOAD, worker, load())

    def seat(self, replica: ReplicaId, lag: Mapping[StreamName, int] | None = None) -> ReplicaState:
        """The replica's place, which has folded all but so many messages of the streams named."""
        seat = self._seat(replica)
        for stream, frames in self.frames.items():
            at = seat.state.open(stream, Epoch(1))
            for frame in frames[at : max(at, len(frames) - (lag or {}).get(stream, 0))]:
                seat.state.fold(stream, frame.seq, frame.owner, frame.message, frame.head)
        seat.move_to(seat.state)
        return seat

    def decided(
        self,
        request: str,
        prompt: Prompt,
        *,
        replica: ReplicaId = R,
        attempt: int = 0,
        lag: Mapping[StreamName, int] | None = None,
        seed: int = 0,
        model: str = "tiny",
        version: int = DECIDE_VERSION,
        time: PrefillTime | None = None,
    ) -> RequestRouted:
        """The replica's decision, with so many messages of each stream unseen and this learned duration of prefills;
        the log does not have it yet."""
        seat = self.seat(replica, lag)
        asked = RouteRequest(RequestId(request), attempt, model, prompt, time=time)
        decision = decide(seat.view, asked, seat.settings, self.clock.now_ms + self.skew_ms, seed, version=version)
        return record(decision, asked, seat.settings, seat.revision)

    def route(
        self,
        request: str,
        prompt: Prompt,
        *,
        replica: ReplicaId = R,
        attempt: int = 0,
        lag: Mapping[StreamName, int] | None = None,
        seed: int = 0,
        after_ms: int = 0,
        version: int = DECIDE_VERSION,
    ) -> RequestRouted:
        """It decides, and the log has it that much later."""
        event = self.decided(request, prompt, replica=replica, attempt=attempt, lag=lag, seed=seed, version=version)
        self.clock.advance(after_ms)
        self.tell(event, replica=replica)
        return event

    def tell(self, *events: Event, replica: ReplicaId = R) -> StreamSeq:
        """The replica says it, and the log has it."""
        seq = self.say(ROUTING, replica, *events)
        for event in events:
            self._seat(replica).apply_own(seq, event)
        return seq

    def report(self, replica: ReplicaId) -> ReplicaReported:
        """What the folds of the replica are, which has folded all; nobody has heard of it."""
        found = DigestCheckpoints(self.seat(replica).state).report()
        assert found is not None
        return found

    def archived(self, path: Path, cut: Mapping[StreamName, int] | None = None, snapshot: Taken | None = None) -> Path:
        """All of it stands in the file; of streams that are cut only what follows that sequence. With a snapshot
        they are cut behind it, and it is there."""
        writer = ArchiveWriter(path, "test", KEY.chain_key, "contrail test", self.clock.now_ms)
        if snapshot is not None:
            writer.add_snapshot(*snapshot)
            cut = {StreamName(stream): at.seq for stream, at in snapshot[0].cursor.items()}
        for stream, frames in self.frames.items():
            first = (cut or {}).get(stream, 0) + 1
            writer.open(stream, Epoch(1), first if snapshot is not None else 1, first)
            for stored in self._records:
                if stored.stream == stream and stored.seq >= first:
                    writer.add(stored)
            writer.reached(stream, len(frames))
        writer.finish(writer.contents(0, self.clock.now_ms))
        return path

    def recording(
        self, path: Path, cut: Mapping[StreamName, int] | None = None, snapshot: Taken | None = None
    ) -> Recording:
        """The same, opened with the key."""
        return Recording.open(self.archived(path, cut, snapshot), KEY)

    def snapshot(self) -> Taken:
        """Of all that was said so far."""
        state = State(KEY.chain_key)
        for stream, frames in self.frames.items():
            state.open(stream, Epoch(1))
            for frame in frames:
                state.fold(stream, frame.seq, frame.owner, frame.message, frame.head)
        content = b"".join(encode(state))
        manifest = Manifest(
            id="s1",
            fold_version=FOLD_VERSION,
            made_ms=self.clock.now_ms,
            by="r1",
            fence=1,
            cursor=cursor_of(state),
            digest=f"{state.digest:016x}",
            incomplete=0,
            chunks=1,
            first_seq=1,
            size_bytes=len(content),
            checksum=digest(content, KEY.chain_key).hex(),
        )
        return manifest, content

    def _seat(self, replica: ReplicaId) -> ReplicaState:
        if replica not in self._seats:
            self._seats[replica] = ReplicaState(replica, State(KEY.chain_key))
        return self._seats[replica]
