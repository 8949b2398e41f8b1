"""PrefixLoss: the blocks of one request's prompt that caches had held and that were computed.

It has where they were last, the blocks that took their room, and other choices that would have found them. Causes and
their precedence are those of `cache_losses`. The log does not name the cause of a removal, so two facts stand beside
each removed copy, both counted from stores:

1. Room: the blocks that took its room, by the rule of `FreedRoom`.
2. Stored meanwhile: all blocks that were stored on that worker between the last use of the copy and its removal. A copy
   was used until the last request that was sent there with it ended; if that had not ended, until it was sent.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from core.errors import CallerError
from core.events import Event, RequestRouted, UnknownEvent
from core.ids import WorkerId, from_column
from core.subjects import ROUTING
from replay.cache.block_history import BlockHistory, Cause, kv_streams
from replay.cache.block_owners import NO_OWNER
from replay.cache.cache_losses import apart_reason
from replay.cache.cache_report import FIELDS
from replay.cache.copy_trace import STORED, CopyChange, CopyTrace
from replay.cache.decision_pass import DecisionPass, PassedDecision, cause_runs
from replay.cache.holders import BlockHolder, HolderTable
from replay.parallel import collector_paused
from replay.playback.playback import Playback
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from replay.verify.chain_proof import gaps_of

HELD, NOT_USED, BARRED = "held", "not_used", "barred"
"""Ways of a loss without a removal: another worker held it; the chosen worker held it, and its engine did not use it;
only workers held it that could not take the request."""


class BlockShare(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that one request stored on a worker."""

    request: str
    attempt: int
    seq: int
    """Of its decision, in the routing stream."""
    tenant: str
    session: str
    """The session's key; empty if its client named none."""
    blocks: int
    same_session: bool
    """True if it is of the session of the request that lost its blocks."""
    alternative: str
    """Another recorded candidate of its decision that held as much of its prompt, by name; empty if there is none."""


class StoredBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that were stored on a worker. All shares and `unknown` are `blocks`."""

    blocks: int
    shares: list[BlockShare]
    """By request, the most first."""
    unknown: int
    """Blocks that no request in the log had used."""


class EarlierCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy on another worker that went before."""

    worker: str
    worker_name: str
    gone_ms: int
    how: str


class LossRun(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of the prompt in a row that were lost in one way."""

    cause: str
    """As `CacheSums` names it."""
    how: str
    """`removed`, `cleared`, `lost` (with its worker), `unknown` (messages are missing), `held`, `not_used`, `barred`,
    or `stored` (and the replica had not read it)."""
    first_block: int
    """From 0."""
    blocks: int
    tokens: int
    worker: str
    """The worker with the copy that went last, or that holds most; empty if it is not known."""
    worker_name: str
    reasons: list[str]
    """For which that worker could not take the request."""
    used_by: str = ""
    """The last request that used the copy there; empty if the log has none."""
    used_ms: int = 0
    """Until when; 0 if it is not known."""
    first_ms: int = 0
    """When the first of these copies went, or was stored; 0 without such a message …"""
    last_ms: int = 0
    """… and the last one."""
    room: StoredBlocks | None = None
    """Of removed copies, the blocks that took their room; `unknown` has those whose room is still empty, too."""
    meanwhile: StoredBlocks | None = None
    """Of removed copies, all blocks that were stored there since the last use; None if that is not known."""
    earlier: list[EarlierCopy] = msgspec.field(default_factory=list)
    """Other workers that had held the first of the blocks, the newest first."""


class FoundElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that held some of the prompt at the decision's cursor."""

    worker: str
    worker_name: str
    tokens: int
    """In whole blocks that an engine can reuse."""
    chosen: bool
    barred: list[str]
    """Reasons for which it could not take the request; empty if it could."""


class AttemptLoss(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt with a first token."""

    attempt: int
    seq: int
    time_ms: int
    worker: str
    worker_name: str
    prompt_tokens: int
    block_size: int
    achieved_tokens: int
    lost_tokens: int
    tokens: dict[str, int]
    """By cause, as `CacheSums` names them. All and the achieved tokens are the prompt."""
    runs: list[LossRun]
    """In the order of the prompt."""
    holders: list[FoundElsewhere]
    """The most first."""
    gain_tokens: int
    """Further tokens that the best other worker would have had cached; 0 if none."""


class PrefixLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one request."""

    request: str
    tenant: str
    attempts: list[AttemptLoss]
    apart: dict[str, int]
    """Attempts that got no first token of their own worker, by the reason."""
    history_from_ms: int
    """Caches before this time are not known, but for the blocks that they held then; 0 if the log has its start."""
    gaps: int
    forgotten: int
    """Blocks beyond the bounds of the tables; 0 if the answer is exact."""


def prefix_loss(recording: Recording, request: str, tenant: str | None = None) -> PrefixLoss:
    """The answer for the tenant's last request of that name, as `RequestHistory.named` reads it. One pass through the
    log up to each attempt, some 0.1 ms per message. CallerError if the log does not have the request, or no attempt at
    it counts."""
    if recording.excerpt is not None:
        raise CallerError(f"what a cache lost needs the whole log. {recording.excerpt_text}")
    name = recording.requests.named(request)
    uses = recording.requests.uses_of(name, tenant)
    if not uses:
        raise CallerError(f"the log knows no request {request!r}; `contrail events --stream routing` lists them")
    tried = next((tries for tries in reversed(uses) if any(each.worker for each in tries)), [])
    if not tried:
        raise CallerError(f"request {name} was sent to no worker, so no cache was judged")
    reasons = [(each, apart_reason(each)) for each in tried if each.worker]
    served = [each for each, reason in reasons if not reason]
    if not served:
        why = ", ".join(sorted({reason for _, reason in reasons}))
        raise CallerError(f"request {name} got no first token of a worker of its own ({why}), so no cache was judged")
    with collector_paused():
        found = [_attempt_loss(recording, each) for each in served]
    starts = recording.start
    is_cut = any(starts[stream] for stream in (*kv_streams(recording), ROUTING) if stream in starts)
    return PrefixLoss(
        request=name,
        tenant=served[0].tenant,
        attempts=[loss for loss, _ in found],
        apart=dict(sorted(Counter(reason for _, reason in reasons if reason).items())),
        history_from_ms=recording.start_ms if is_cut else 0,
        gaps=len(gaps_of(recording).all),
        forgotten=max(forgotten for _, forgotten in found),
    )


class _LostBlock(NamedTuple):
    """One block by its cause; runs are those of equal `key`."""

    place: int
    cause: Cause
    how: str
    change: CopyChange | None
    """The removal, the end or the store."""
    holder: BlockHolder | None

    @property
    def key(self) -> tuple[object, ...]:
        change, holder = self.change, self.holder
        return self.cause, self.how, change and (change.worker, change.owner), holder and holder.worker


def _attempt_loss(recording: Recording, attempt: RequestAttempt) -> tuple[AttemptLoss, int]:
    """The answer for one attempt, and the number of blocks that were forgotten."""
    streams, end = kv_streams(recording), attempt.seq + 1
    table, history = HolderTable(streams, listed=(attempt.at,)), BlockHistory(len(streams))
    for _ in table.read(Playback(recording, attempt.seq, end, gaps=gaps_of(recording)), recording.requests):
        pass  # the table fills
    event = _routed(recording.whole_events([attempt.at]))
    scope, prompt = (event.model, event.block_size), array("Q", event.hashes).tolist()
    trace = CopyTrace(history.caches, recording.requests, scope, prompt)
    one_pass = DecisionPass(recording, end, history, table, [trace])
    for each in one_pass.decisions():
        if each.number == attempt.at:
            break
        if each.hashes and not each.attempt.declined:
            trace.use(WorkerId(each.event.worker), each.number, array("Q", each.hashes).tolist())
    if not each.is_whole:
        raise CallerError(f"the log does not have the prompt of {attempt.request}, or its replica's view")
    causes = [cause for cause, blocks in cause_runs(each, history) for _ in range(blocks)]
    report = _LossReport(recording, each, trace, table.listed[attempt.at])
    one_pass.go_on(attempt.prefilled_ms)
    return report.loss(causes), history.forgotten + trace.forgotten


class _LossReport:
    """The answer in the making."""

    def __init__(
        self, recording: Recording, it: PassedDecision, trace: CopyTrace, holders: Sequence[BlockHolder]
    ) -> None:
        """The trace stands at the decision; it may go on up to the first token."""
        self._recording = recording
        self._it = it
        self._trace = trace
        self._decided = trace.order
        self._holders = sorted(holders, key=lambda holder: (-holder.depth, holder.worker))

    def loss(self, causes: Sequence[Cause]) -> AttemptLoss:
        """The answer; the causes are those of the blocks behind the achieved ones."""
        it = self._it
        blocks = [
            self._lost(place, cause)
            for place, cause in enumerate(causes, it.achieved)
            if cause not in {Cause.NOT_YET, Cause.COLD}
        ]
        runs = [
            self._run(list(run))
            for _, run in groupby(enumerate(blocks), key=lambda pair: (pair[1].place - pair[0], *pair[1].key))
        ]
        size, names = it.event.block_size, self._recording.names
        tokens = {name: causes.count(cause) * size for cause, name in FIELDS.items()}
        chosen = WorkerId(it.event.worker)
        best = max((h.depth for h in self._holders if h.worker != chosen and not h.barred), default=0)
        return AttemptLoss(
            attempt=it.event.attempt,
            seq=it.seq,
            time_ms=it.attempt.time_ms,
            worker=chosen,
            worker_name=names.worker(chosen),
            prompt_tokens=it.event.prompt_tokens,
            block_size=size,
            achieved_tokens=it.achieved * size,
            lost_tokens=size * len(blocks),
            tokens=tokens | {"always_computed": it.event.prompt_tokens - it.reusable * size},
            runs=runs,
            holders=[
                FoundElsewhere(
                    worker=holder.worker, worker_name=names.worker(holder.worker), tokens=holder.depth * size,
                    chosen=holder.worker == chosen, barred=list(holder.barred),
                )
                for holder in self._holders
            ],
            gain_tokens=max(0, min(best, it.reusable) - it.achieved) * size,
        )  # fmt: skip

    def _lost(self, place: int, cause: Cause) -> _LostBlock:
        """The block of that place with the way of its loss."""
        changes, cursor, chosen = self._trace.changes[place], self._it.cursor, self._it.event.worker
        holding = [holder for holder in self._holders if holder.depth > place]
        if cause == Cause.BEHIND:
            stored = next(
                each for each in changes
                if each.how == STORED and each.seq > cursor[each.stream] and each.order <= self._decided
            )  # fmt: skip
            return _LostBlock(place, cause, STORED, stored, None)
        if cause == Cause.EVICTED and any(holder.worker == chosen for holder in holding):
            gone = (each for each in changes if each.worker == chosen and each.how != STORED)
            later = next((each for each in gone if each.seq > cursor[each.stream]), None)
            own = next(holder for holder in holding if holder.worker == chosen)
            return _LostBlock(place, cause, NOT_USED if later is None else later.how, later, own)
        if cause == Cause.ELSEWHERE or (cause == Cause.LOST and holding):
            is_barred = cause == Cause.LOST
            fitting = [each for each in holding if bool(each.barred) == is_barred and each.worker != chosen]
            most = max(fitting, key=lambda each: each.depth)
            return _LostBlock(place, cause, BARRED if is_barred else HELD, None, most)
        last = [each for each in changes if each.how != STORED and each.seq <= cursor[each.stream]][-1]
        return _LostBlock(place, cause, last.how, last, None)

    # --- a run ---------------------------------------------------------------------------------------------------

    def _run(self, numbered: Sequence[tuple[int, _LostBlock]]) -> LossRun:
        blocks = [block for _, block in numbered]
        first, names, size = blocks[0], self._recording.names, self._it.event.block_size
        changes = [block.change for block in blocks if block.change is not None]
        worker = first.change.worker if first.change is not None else first.holder.worker if first.holder else ""
        owner = changes[0].owner if changes and first.how != STORED else NO_OWNER
        user = self._recording.requests.at(owner) if owner != NO_OWNER else None
        is_removed = first.how == "removed"
        used_ms = self._used_ms(user, min(each.time_ms for each in changes)) if user is not None else 0
        return LossRun(
            cause=FIELDS[first.cause],
            how=first.how,
            first_block=first.place,
            blocks=len(blocks),
            tokens=len(blocks) * size,
            worker=worker,
            worker_name=names.worker(worker),
            reasons=list(first.holder.barred) if first.holder is not None else [],
            used_by=user.request if user is not None else "",
            used_ms=used_ms,
            first_ms=min((each.time_ms for each in changes), default=0),
            last_ms=max((each.time_ms for each in changes), default=0),
            room=self._room(blocks) if is_removed else None,
            meanwhile=self._meanwhile(worker, used_ms, changes) if is_removed and used_ms else None,
            earlier=self._earlier(first, worker),
        )

    def _used_ms(self, user: RequestAttempt, removed_ms: int) -> int:
        """When its last user ended, if that was before the removal; else when it was sent there."""
        ended_ms = user.void_ms
        if not ended_ms and user.ended_seq:
            record = self._recording.archive.at(ROUTING, user.ended_seq)
            ended_ms = record.time_ms if record is not None else 0
        return ended_ms if 0 < ended_ms <= removed_ms else user.time_ms

    def _room(self, blocks: Sequence[_LostBlock]) -> StoredBlocks:
        takers = self._trace.takers
        removals = [(block.place, block.change.order) for block in blocks if block.change is not None]
        return self._stored(Counter(takers.get(removal, NO_OWNER) for removal in removals))

    def _meanwhile(self, worker: str, used_ms: int, changes: Iterable[CopyChange]) -> StoredBlocks:
        last = max(each.order for each in changes)
        return self._stored(self._trace.stored_between(WorkerId(worker), used_ms, last))

    def _stored(self, counts: Counter[int]) -> StoredBlocks:
        known = sorted((-blocks, owner) for owner, blocks in counts.items() if owner != NO_OWNER)
        return StoredBlocks(
            blocks=counts.total(),
            shares=[self._share(owner, -less) for less, owner in known],
            unknown=counts[NO_OWNER],
        )

    def _share(self, owner: int, blocks: int) -> BlockShare:
        attempt, own = self._recording.requests.at(owner), self._it.attempt
        assert attempt is not None
        return BlockShare(
            request=attempt.request,
            attempt=attempt.attempt,
            seq=attempt.seq,
            tenant=attempt.tenant,
            session=attempt.session,
            blocks=blocks,
            same_session=attempt.session != "" and attempt.session == own.session,
            alternative=self._alternative(owner),
        )

    def _alternative(self, owner: int) -> str:
        """A recorded candidate of that decision, not its choice, that held as much of the prompt as the choice did."""
        event = _routed(self._recording.events([owner]))
        candidates = from_column(event.candidates)
        depths = dict(zip(candidates, event.columns["overlap_all"], strict=True))
        own = depths.pop(event.worker, 0)
        as_good = next((worker for worker, depth in depths.items() if depth >= own), "")
        return self._recording.names.worker(as_good)

    def _earlier(self, first: _LostBlock, worker: str) -> list[EarlierCopy]:
        """The last ends of copies on other workers, before the decision."""
        cursor, names, found = self._it.cursor, self._recording.names, dict[str, EarlierCopy]()
        for each in reversed(self._trace.changes[first.place]):
            if each.seq > cursor[each.stream] or each.worker == worker or each.worker in found or each.how == STORED:
                continue
            found[each.worker] = EarlierCopy(
                worker=each.worker, worker_name=names.worker(each.worker), gone_ms=each.time_ms, how=each.how
            )
        return list(found.values())


def _routed(events: Iterable[tuple[int, Event | UnknownEvent]]) -> RequestRouted:
    """The decision among these events: the requests of a recording have their numbers from decisions."""
    return next(event for _, event in events if isinstance(event, RequestRouted))
