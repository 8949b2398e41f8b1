"""Candidate columns: the bytes of all candidates that the digest of a decision covers since version 6 of the rules.

The candidates stand by id. First come their ids as text, one a line; then one column after the other, each number as
eight bytes (int64, little-endian; beyond that its lowest 64 bits):

    capacity, cache known, draining, cached blocks of each level, blocks being computed, blocks and requests in flight,
    tokens to prefill, requests that wait, cost, blocks to prefill;
    the expected waits, under policies that estimate times; reuse and turnover, if any candidate has some.

`projections.policy.column_decision` has these columns in memory, and makes the same bytes of them without a look at
each worker. The order of the candidates is not among them: it follows from costs, cached blocks and ids, and the digest
has the chosen one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat

from core.ids import id_lines
from projections.digest import MASK64
from projections.policy.cost import ScoredCandidate
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog


def candidate_columns(scored: Sequence[ScoredCandidate], backlog: PrefillBacklog) -> bytes:
    """The bytes for these candidates, which are sorted by id; empty without candidates. O(candidates)."""
    if not scored:
        return b""
    candidates, costs, prefills = zip(*scored, strict=True)
    workers, _, _, capacities, known, overlaps, pending, blocks, requests, tokens, waiting, draining = zip(
        *candidates, strict=True
    )
    numbers = [
        *capacities, *known, *draining, *chain.from_iterable(zip(*overlaps, strict=True)), *pending, *blocks, *requests,
        *tokens, *waiting, *costs, *prefills,
    ]  # fmt: skip
    if backlog is not NO_BACKLOG:
        numbers += map(backlog.waits_us.get, workers, repeat(0))
        if backlog.reuse and any(reuse := [*map(backlog.reuse.get, workers, repeat(0))]):
            numbers += reuse
        if backlog.turnover:
            numbers += map(backlog.turnover.get, workers, repeat(0))
    return id_lines(workers) + _packed(numbers)


def _packed(numbers: list[int]) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}q", *numbers)
    except struct.error:  # no number of a real fleet is so large
        return struct.pack(f"<{len(numbers)}Q", *[number & MASK64 for number in numbers])
