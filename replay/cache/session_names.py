"""SessionNames: the session of each decision; where clients name none, the first request of the prompts that it
continues."""

from __future__ import annotations

from core.events import RequestRouted
from core.prompt import HASH_BYTES


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
