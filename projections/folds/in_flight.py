"""InFlightLoad: the load of requests in flight on each worker, and the prompts that are being computed there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

import msgspec

from core.ids import RequestId, WorkerId
from core.prompt import HASH_BYTES, Prompt, known_depths


class OutstandingPrefill(NamedTuple):
    """One prefill that was not done when last heard of; they are ordered as a worker takes them."""

    begins_us: int
    """Expected start of its prefill, by the clock of decisions; 0 if unknown."""
    request: RequestId
    attempt: int
    tokens: int


AttemptKey = tuple[RequestId, int]
"""A request and its attempt."""
Place = TypeVar("Place", WorkerId, bytes)
Row = TypeVar("Row")
HashAt = tuple[slice, bytes]
"""A place in a prompt's hashes, and what stands there."""
ANY_HASH: HashAt = slice(0, 0), b""
NO_HASH: HashAt = slice(0, 0), b"none"


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt between its routing and its end, with what was fixed when it was routed."""

    worker: WorkerId
    blocks: int
    prefill_tokens: int
    """Tokens still to be computed before its first one; 0 once that came."""
    hashes: bytes = msgspec.field(default_factory=bytes)  # so it is written when empty, too, as it always was
    """Block hashes of its prompt while it is prefilled; those behind its base, if it has one."""
    begins_us: int = 0
    """When its prefill was expected to begin, by the clock of decisions; 0 if that is not known, and once the first
    token came."""
    believed: tuple[int, int] | None = None
    """`projections.folds.approximate_index.CacheRetention` while it is prefilled, where the policy was
    `approximate`."""
    base_blocks: int = 0
    """Leading blocks of the prompt that `hashes` leaves out, because it continues another decision …"""
    base_hashes: bytes = b""
    """… and the hashes of these at `core.prompt.known_depths`."""

    @property
    def first_hash(self) -> bytes:
        """The hash of the prompt's first block; empty if it is not known."""
        return (self.base_hashes or self.hashes)[:HASH_BYTES]

    def prefilled(self) -> InFlight:
        """The same after its first token."""
        return InFlight(self.worker, self.blocks, 0)


Entries = dict[int, tuple[AttemptKey, InFlight]]
"""Entries by the identity of the object: two replicas may have one request id, chosen by their clients. No result may
depend on their order."""


class WorkerLoad(msgspec.Struct):
    """The sum over one worker's requests in flight."""

    blocks: int = 0
    requests: int = 0
    prefill_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.blocks or self.requests or self.prefill_tokens)

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.blocks} blocks, {self.prefill_tokens} tokens to compute"


NO_LOAD = WorkerLoad()


class InFlightLoad:
    """Sums per worker, and what is being prefilled there, kept up to date with each change; O(1) each."""

    def __init__(self) -> None:
        self.busy: dict[WorkerId, WorkerLoad] = {}
        self.prefills: dict[WorkerId, dict[int, OutstandingPrefill]] = {}
        """Requests of which no first token has come, by the identity of their entries; a worker without any is not in
        it."""
        self.watched: dict[WorkerId, int] = {}
        """Workers of which changes are noted (`projections.folds.worker_table`) …"""
        self.changed: dict[WorkerId, None] = {}
        """… and those of them with a change since they were taken."""
        self._pending: dict[bytes, Entries] = {}
        """Their entries, by the first block of their prompts where that is known."""

    def add(self, key: AttemptKey, entry: InFlight) -> None:
        """The entry counts. The caller keeps the object until it subtracts it: the object's identity is its key."""
        self.weigh(entry, 1)
        if not entry.prefill_tokens:
            return
        place, (request, attempt) = id(entry), key
        row = tuple.__new__(
            OutstandingPrefill, (entry.begins_us, request, attempt, entry.prefill_tokens)
        )  # half its price
        self.prefills.setdefault(entry.worker, {})[place] = row
        if first := entry.first_hash:
            self._pending.setdefault(first, {})[place] = key, entry

    def subtract(self, entry: InFlight) -> None:
        """The entry counts no more; sums may be negative where it was added elsewhere."""
        self.weigh(entry, -1)
        if entry.prefill_tokens:
            _drop(self.prefills, entry.worker, entry)
            _drop(self._pending, entry.first_hash, entry)

    def computed(self, entry: InFlight) -> None:
        """The entry's prompt was computed: it counts as its `prefilled` does from now on."""
        if entry.prefill_tokens:
            self.weigh_prefill(entry, -1)
            _drop(self.prefills, entry.worker, entry)
            _drop(self._pending, entry.first_hash, entry)

    def weigh(self, entry: InFlight, sign: int) -> None:
        """The sums have the entry's weight once more, or once less for -1; what is prefilled and pending stays."""
        busy = self.busy.get(entry.worker)
        if busy is None:
            busy = self.busy[entry.worker] = WorkerLoad()
        busy.blocks += sign * entry.blocks
        busy.requests += sign
        busy.prefill_tokens += sign * entry.prefill_tokens
        if entry.worker in self.watched:
            self.changed[entry.worker] = None
        if not (busy.requests or busy.blocks or busy.prefill_tokens):  # as __bool__, without the call
            del self.busy[entry.worker]

    def weigh_prefill(self, entry: InFlight, sign: int) -> None:
        """The same of its prefill alone."""
        busy = self.busy.get(entry.worker)
        if busy is None:
            busy = self.busy[entry.worker] = WorkerLoad()
        busy.prefill_tokens += sign * entry.prefill_tokens
        if entry.worker in self.watched:
            self.changed[entry.worker] = None
        if not (busy.prefill_tokens or busy.requests or busy.blocks):
            del self.busy[entry.worker]

    def workers(self) -> AbstractSet[WorkerId]:
        """Workers with a sum or a row."""
        rows = (row for rows in self._pending.values() for row in rows.values())
        return self.busy.keys() | self.prefills.keys() | {entry.worker for _, entry in rows}

    def differences(self, expected: InFlightLoad, workers: AbstractSet[WorkerId]) -> list[str]:
        """For each of these workers, by id, a text if its sums or rows are others than expected."""
        found = []
        rows, expected_rows = self._pending_of(workers), expected._pending_of(workers)
        for worker in sorted(workers):
            have, want = self.busy.get(worker, NO_LOAD), expected.busy.get(worker, NO_LOAD)
            if have != want:
                found.append(f"worker {worker} has {have}, instead of {want}")
            elif self.prefills.get(worker) != expected.prefills.get(worker) or rows[worker] != expected_rows[worker]:
                found.append(f"worker {worker} has other prompts to compute than the requests in flight have")
        return found

    def _pending_of(self, workers: Iterable[WorkerId]) -> dict[WorkerId, dict[tuple[bytes, int], AttemptKey]]:
        found: dict[WorkerId, dict[tuple[bytes, int], AttemptKey]] = {worker: {} for worker in workers}
        for first, rows in self._pending.items():
            for place, (key, entry) in rows.items():
                if entry.worker in found:
                    found[entry.worker][first, place] = key
        return found

    def pending(self, prompt: Prompt) -> Collection[tuple[AttemptKey, InFlight]]:
        """Requests in prefill that share the first block of the prompt."""
        if not self._pending or not prompt.blocks_reusable:
            return ()
        same_start = self._pending.get(prompt.block(1))
        return () if same_start is None else same_start.values()


def _drop(table: dict[Place, dict[int, Row]], place: Place, entry: InFlight) -> None:
    """The very entry is there no more, if it was."""
    entries = table.get(place)
    if entries is not None and entries.pop(id(entry), None) is not None and not entries:
        del table[place]


def shared_depth(hashes: bytes, prompt: Prompt, guess: int = 0, base: int = 0) -> int:
    """Number of leading blocks that the two share, at most those reusable; `hashes` are those behind the first `base`,
    which they share. O(log blocks) probes, two if `guess` is right."""
    low, high = base, min(base + len(hashes) // HASH_BYTES, prompt.blocks_reusable)
    block, start = prompt.block, HASH_BYTES * (base + 1)
    if base < guess <= high:
        at = guess * HASH_BYTES - start
        if hashes[at : at + HASH_BYTES] != block(guess):
            high = guess - 1
        elif guess == high or hashes[at + HASH_BYTES : at + 2 * HASH_BYTES] != block(guess + 1):
            return guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high + 1) // 2
        at = middle * HASH_BYTES - start
        if hashes[at : at + HASH_BYTES] == block(middle):
            low = middle
        else:
            high = middle - 1
    return low


def known_depth(entry: InFlight, prompt: Prompt, least: int = 0) -> int:
    """Number of leading blocks that the two share, as far as the entry shows it: the deepest of its known depths where
    the hashes agree, at most those reusable. 0 if that is not more than `least`, for one probe; else O(log blocks)."""
    base, hashes = entry.base_blocks, entry.base_hashes
    place, block = hash_beyond(prompt, least, base)
    if (hashes if least < base else entry.hashes)[place] != block:
        return 0
    if least < base and (base > prompt.blocks_reusable or hashes[-HASH_BYTES:] != prompt.block(base)):
        depths = known_depths(base)
        return depths[_last_alike(hashes, depths, prompt, place.start // HASH_BYTES)]
    return shared_depth(entry.hashes, prompt, base + 1, base)


def _last_alike(hashes: bytes, depths: Sequence[int], prompt: Prompt, low: int) -> int:
    """The last place of these depths at which the prompt has the same hash; it has that at `low`."""
    high = bisect_right(depths, prompt.blocks_reusable) - 1
    while low < high:
        middle = (low + high + 1) // 2
        at = middle * HASH_BYTES
        if hashes[at : at + HASH_BYTES] == prompt.block(depths[middle]):
            low = middle
        else:
            high = middle - 1
    return low


def hash_beyond(prompt: Prompt, depth: int, base: int = 0) -> HashAt:
    """The hash that an entry with that base shows if it shares more than the prompt's first `depth` blocks, and its
    place: in the base's hashes where `depth` is less than that, else in those behind it. One probe."""
    place, further = depth - base, depth + 1
    if depth < base:
        depths = known_depths(base)
        place = bisect_right(depths, depth)
        further = depths[place]
    if further > prompt.blocks_reusable:
        return NO_HASH
    start = place * HASH_BYTES
    return slice(start, start + HASH_BYTES), prompt.block(further)
