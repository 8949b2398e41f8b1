"""Talks: which requests waited for the answer to another one, as the next turn of a talk does.

A request follows an earlier one if its prompt begins with all full blocks of that one's prompt and is longer, and that
one had ended before it came; or if a client named the same session for both. Of several the longest prompt counts, and
then the one that ended last.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from core.ids import RequestId
from core.prompt import HASH_BYTES
from replay.closed_loop.past import Past
from replay.simulating.follows import Follows

US_PER_MS = 1000


def talks(requests: Sequence[Past]) -> dict[RequestId, Follows]:
    """Each that follows another one, and how long after that one's end it came. `requests` are in the order in which
    they came; some 0.1 us per block."""
    found: dict[RequestId, Follows] = {}
    ending: list[tuple[int, int]] = []
    by_prompt: dict[bytes, Past] = {}
    by_session: dict[str, Past] = {}
    for number, it in enumerate(requests):
        while ending and ending[0][0] <= it.came_ms:
            ended = requests[heappop(ending)[1]]
            if ended.routed.hashes:
                by_prompt[ended.routed.hashes[-HASH_BYTES:]] = ended
            if ended.routed.session:
                by_session[ended.routed.session] = ended
        before = by_session.get(it.routed.session) or _begun(it, by_prompt)
        if before is not None:
            found[it.id] = Follows(before.id, (it.came_ms - before.end_ms) * US_PER_MS)
        heappush(ending, (it.end_ms, number))
    return found


def _begun(it: Past, by_prompt: dict[bytes, Past]) -> Past | None:
    """The longest earlier prompt that this one goes on with."""
    hashes = it.routed.hashes
    for end in range(len(hashes), 0, -HASH_BYTES):
        before = by_prompt.get(hashes[end - HASH_BYTES : end])
        if before is not None and before.routed.prompt_tokens < it.routed.prompt_tokens:
            return before
    return None
