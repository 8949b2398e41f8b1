"""SessionNames: the session of each decision; where clients name none, the first request of the prompts that it
continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from core.events import RequestRouted
from core.prompt import HASH_BYTES
from core.subjects import ROUTING
from replay.recording.prompt_columns import BaseFault
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES, RequestAttempt


class SessionNames:
    """Names by the last whole block of each prompt so far; one entry per different prompt.

    A prompt continues the longest earlier one that it has whole, block by block, as in the closed loop
    (`replay.simulate.recorded_requests.find_follow_ups`). The id of the first of them is the name of all.
    """

    def __init__(self) -> None:
        self._by_prompt: dict[bytes, str] = {}

    def __repr__(self) -> str:
        return f"<SessionNames: {len(self._by_prompt)} prompts>"

    def name(self, event: RequestRouted, hashes: bytes) -> str:
        """The client's session, or the name by its prompt, which has these block hashes; in the order of the log.
        O(blocks behind the prompt that it continues)."""
        if event.session:
            return event.session
        name = event.request
        for end in range(len(hashes), 0, -HASH_BYTES):
            before = self._by_prompt.get(hashes[end - HASH_BYTES : end])
            if before is not None:
                name = before
                break
        if hashes:
            self._by_prompt[hashes[-HASH_BYTES:]] = name
        return name


class SessionTurn(NamedTuple):
    """One attempt at a request of a session."""

    session: str
    """Its name."""
    parent: str
    """The session that it is a sub-agent of, as its client says; empty for none."""
    attempt: RequestAttempt


def session_turns(recording: Recording) -> Iterator[SessionTurn]:
    """Every attempt of the recording with the name of its session, in the order of the log. Names begin with the
    recording: a talk that began before it is named by its first request there. Some 30 us each."""
    names, columns, requests = SessionNames(), recording.columns, recording.requests
    if ROUTING not in recording.streams:
        return
    for record, message in recording.messages(ROUTING):
        for place, event in enumerate(message.events):
            if not isinstance(event, RequestRouted):
                continue
            attempt = requests.at(record.seq * PLACES + place)
            if attempt is None:
                continue  # a repeat, or no message of its replica
            column = columns.of(record.seq, place, event)
            name = names.name(event, b"" if isinstance(column, BaseFault) else column)
            yield SessionTurn(name, event.session_parent, attempt)
