"""Keyframes: the whole recording folded once, in small steps, with states frozen so often that jumps are fast.

A jump makes a state from a keyframe and folds from there; both are measured, and set the distance. Keyframes are
further apart if they would not fit into KEYFRAMES_BYTES_MAX.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from heapq import merge
from operator import attrgetter

from core.errors import ContrailError
from core.ids import Epoch, StreamName, StreamSeq
from projections.folds.frozen_state import FrozenState, freezing
from projections.folds.state import State
from replay.recording.recording import Cursor, RecordedFrame, Recording

JUMP_S = 0.025
"""Bound of a jump by these measurements; reading and drawing take as long again, and the promise is 200 ms. Where
making a state takes more than half of it, the fold behind it takes as long as that: the jump is twice its least."""
MEASURED_AGAIN = 1.25
"""Making a state is measured again when keyframes are larger by this factor than the one that was measured."""
READING = 3
"""Cost of a message in a jump, in folds of a message: it is read and decoded, too."""
DISTANCE_MIN, DISTANCE_MAX = 250, 50_000
"""Messages from one keyframe to the next."""
DISTANCE_FIRST = 2000
"""Distance until something is measured."""
KEYFRAMES_BYTES_MAX = 512 * 1024 * 1024
STEP_MESSAGES = 200
"""A step takes some 4 ms."""

FOLD_MAX = 8_000
"""Messages folded for one question at most, some 0.15 s; between keyframes it is half of that."""

KeyframeSink = Callable[[Cursor, FrozenState], None]


class StateNotFolded(ContrailError):
    """The fold has not come so far; asking again in a moment helps."""


def check_near(recording: Recording, cursor: Cursor) -> None:
    """StateNotFolded if the state at the cursor needs more than FOLD_MAX messages from the keyframe before it."""
    if recording.to_fold(cursor) > FOLD_MAX:
        raise StateNotFolded("states are being folded up to there")


class KeyframeBuilder:
    """One state that is folded forward through a recording as it grows."""

    def __init__(self, keep: KeyframeSink, messages_expected: int = 0) -> None:
        """`keep` gets the keyframes; `messages_expected` bounds the messages of a recording that grows."""
        self.messages = 0
        """Messages folded so far, including those before the recording."""
        self.total = 0
        self.to_ms = -1
        """All messages up to this time are folded."""
        self.keyframes, self.keyframes_bytes = 0, 0
        self.distance = DISTANCE_FIRST
        self._keep = keep
        self._expected = messages_expected
        self._state: State | None = None
        self._since = 0
        """Messages since the last keyframe."""
        self._fold_s, self._thaw_s = 0.0, 0.0
        """Measured time of one message's fold, and of making a state from a keyframe …"""
        self._thawed_bytes = 0
        """… of this size."""

    def __repr__(self) -> str:
        return f"<KeyframeBuilder {self.messages} of {self.total} messages, {self.keyframes} keyframes>"

    @property
    def share(self) -> float:
        """The folded share of the recording, from 0 to 1."""
        return min(1.0, self.messages / self.total) if self.total else 0.0

    def begin(self, state: State) -> None:
        """Folding starts from this state, which belongs to the builder."""
        self._state = state

    def steps(self, recording: Recording) -> Iterator[None]:
        """All of the recording is folded at the end; each step takes a few milliseconds."""
        state = self._opened(recording)
        self.total = sum(recording.end.values())
        self.messages = _reach(state)
        yield
        batch: list[RecordedFrame] = []
        for frame in _by_time(recording, state):
            if len(batch) >= STEP_MESSAGES and frame.time_ms > batch[-1].time_ms:
                self._fold(state, batch)
                yield
                if self._since >= self.distance:
                    yield from self._keyframe(state)
                batch = []
            batch.append(frame)
        self._fold(state, batch)
        _skip_to_ends(state, recording)
        self.messages = self.total

    def _opened(self, recording: Recording) -> State:
        """The state, with all its streams open."""
        assert self._state is not None
        for stream in recording.streams:
            self._state.open(stream, Epoch(recording.archive.span(stream).epoch))
        return self._state

    def _fold(self, state: State, batch: list[RecordedFrame]) -> None:
        if not batch:
            return
        started_s = time.perf_counter()
        for stream, seq, _, owner, head, message in batch:
            state.fold(stream, seq, owner, message, head)
        took_s = (time.perf_counter() - started_s) / len(batch)
        self._fold_s = took_s if not self._fold_s else 0.95 * self._fold_s + 0.05 * took_s
        self._since += len(batch)
        self.messages = _reach(state)
        self.to_ms = batch[-1].time_ms

    def _keyframe(self, state: State) -> Iterator[None]:
        left_bytes = KEYFRAMES_BYTES_MAX - self.keyframes_bytes
        frozen = yield from freezing(state, pack=True)
        size = frozen.size
        if size > left_bytes:
            self.distance = DISTANCE_MAX
            self._since = 0
            return
        self._keep({stream: at.seq for stream, at in state.cursor.items()}, frozen)
        self.keyframes += 1
        self.keyframes_bytes += size
        self._since = 0
        if size > MEASURED_AGAIN * self._thawed_bytes:
            started_s = time.perf_counter()
            frozen.thaw(state.chain_key)
            self._thaw_s, self._thawed_bytes = time.perf_counter() - started_s, size
            yield
        self.distance = self._distance(size, left_bytes - size)

    def _distance(self, size: int, left_bytes: int) -> int:
        """Messages to the next keyframe."""
        thaw_s = self._thaw_s * size / self._thawed_bytes
        by_time = int(max(thaw_s, JUMP_S - thaw_s) / (READING * self._fold_s))
        to_come = max(self.total, self._expected) - self.messages
        by_memory = to_come * size // max(1, left_bytes)
        return min(DISTANCE_MAX, max(DISTANCE_MIN, by_time, by_memory))


def _by_time(recording: Recording, state: State) -> Iterator[RecordedFrame]:
    """The messages that the state has yet to fold, of all streams, in the order of time."""
    readers = [recording.frames(stream, state.cursor[stream].seq + 1) for stream in recording.streams]
    return merge(*readers, key=attrgetter("time_ms"))


def _reach(state: State) -> int:
    return sum(at.seq for at in state.cursor.values())


def _skip_to_ends(state: State, recording: Recording) -> None:
    """The state stands at the recording's ends, past sequences that the log lost behind its last messages."""
    for stream, seq in recording.end.items():
        if state.cursor[stream].seq < seq:
            state.skip_to(StreamName(stream), StreamSeq(seq))
