"""The fold of a kv stream: what a chain proves is known, what it does not prove is nothing."""

from __future__ import annotations

import pytest

from core.block_spans import single
from core.codec import encode_event
from core.events import BlocksStored, CacheCleared, Event, WorkerJoined, WorkerLeft, WorkerLost
from core.ids import LOST_SUFFIX, WorkerId
from projections.digest import MASK64
from projections.folds.kv_fold import KvFold, Member
from projections.folds.source_fold import REASON_CHARS_MAX, TOMBSTONES_MAX, MissingMessages, Tombstones
from projections.index.prefix_index import PrefixIndex
from tests.projections.facts import joined, load, removed, restated, stored, worker_id
from tests.projections.site import KV, Site
from tests.projections.speaker import Said, Speaker, fold

A = WorkerId("aa" * 8)


class Kv:
    """One worker and the fold that hears it."""

    def __init__(self) -> None:
        self.projection = KvFold(PrefixIndex())
        self.speaker = Speaker("kv_0", A)
        self.says(joined())

    def says(self, *events: Event) -> bool:
        return self.hears(self.speaker.say(*events))

    def hears(self, said: Said) -> bool:
        return fold(self.projection, said)[0]

    def loses(self, *events: Event) -> None:
        """The worker said this, and the log does not have it."""
        self.speaker.say(*events)

    @property
    def held(self) -> set[int]:
        return self.projection.index.held(A)

    @property
    def member(self) -> Member:
        return self.projection.members[A]


@pytest.fixture
def kv() -> Kv:
    return Kv()


def test_blocks_come_and_go(kv: Kv) -> None:
    """Stores and removals in order, per tier; clearing empties all tiers."""
    kv.says(stored(1, 2, 3), stored(4, tier="host"), removed(3))
    assert (kv.held, kv.projection.index.held(A, "host")) == ({1, 2}, {4})
    kv.says(CacheCleared(reason="reset"))
    assert (kv.held, kv.projection.index.held(A, "host")) == (set(), set())
    assert kv.member.cache_known
    assert kv.member.alive
    kv.says(stored(5))
    assert kv.held == {5}


def test_a_gap_retires_everything_at_once(kv: Kv) -> None:
    """After a lost message nothing is claimed of the worker, and stores, removals and clearings change nothing."""
    kv.says(stored(1, 2))
    kv.loses(removed(2))
    kv.says(stored(3))
    assert (kv.held, kv.member.cache_known, kv.projection.incomplete) == (set(), False, 1)
    kv.says(stored(4), removed(1), CacheCleared())
    assert (kv.held, kv.member.cache_known) == (set(), False)
    assert kv.member.alive


def test_a_chain_that_does_not_fit_is_a_gap(kv: Kv) -> None:
    """The right n on another history proves nothing."""
    other = Speaker("kv_0", A)
    other.say(joined("another"))
    kv.says(stored(1))
    other.say(stored(2))
    kv.hears(other.say(stored(3)))
    assert (kv.held, kv.member.cache_known) == (set(), False)


def test_a_number_that_was_left_out_is_a_gap(kv: Kv) -> None:
    """Even where the chain fits: the source counts every message."""
    kv.says(stored(1))
    kv.speaker.n_next += 1
    kv.says(stored(2))
    assert (kv.held, kv.member.cache_known) == (set(), False)


def test_a_log_that_begins_in_the_middle_is_a_gap() -> None:
    """The first message heard is not the first one said: the worker is unknown, and not even alive yet."""
    kv = Kv()
    kv.projection = KvFold(PrefixIndex())
    kv.says(stored(1))
    assert (kv.held, kv.member.alive, kv.projection.incomplete) == (set(), False, 1)
    kv.says(joined(), restated(0, 1, 1, 2))
    assert (kv.held, kv.member.alive, kv.projection.incomplete) == ({1, 2}, True, 0)


def test_a_restatement_takes_effect_with_its_last_part(kv: Kv) -> None:
    """Until then an unknown worker stays unknown, and a known one keeps what was known."""
    kv.says(stored(1, 2))
    kv.says(restated(0, 2, 2, 3))
    assert kv.held == {1, 2}
    kv.says(restated(1, 2, 9, tier="host"))
    assert (kv.held, kv.projection.index.held(A, "host")) == ({2, 3}, {9})
    kv.loses()
    kv.says(restated(0, 2, 4), stored(8))
    assert (kv.held, kv.member.cache_known) == (set(), False)
    kv.says(restated(1, 2, 5))
    assert (kv.held, kv.member.cache_known, kv.projection.incomplete) == ({4, 5}, True, 0)
    kv.says(stored(6))
    assert kv.held == {4, 5, 6}


@pytest.mark.parametrize(
    "interruption",
    [
        [restated(0, 2, 7)],
        [CacheCleared(), restated(1, 2, 8), restated(0, 2, 7)],
        [restated(2, 3, 8), restated(1, 2, 8), restated(0, 2, 7)],
    ],
)
def test_an_interrupted_restatement_is_void(kv: Kv, interruption: list[Event]) -> None:
    """Only parts that follow each other from the first to the last count."""
    kv.loses()
    kv.says(restated(0, 2, 1))
    kv.says(*interruption)
    assert not kv.member.cache_known
    kv.says(restated(1, 2, 6))
    assert (kv.held, kv.member.cache_known) == ({7, 6}, True)


def test_a_gap_inside_a_restatement_voids_it(kv: Kv) -> None:
    """A part that was lost cannot be left out."""
    kv.says(restated(0, 3, 1))
    kv.loses(restated(1, 3, 2))
    kv.says(restated(2, 3, 3))
    assert (kv.held, kv.member.cache_known) == (set(), False)


def test_a_repeat_of_the_newest_message_is_no_gap(kv: Kv) -> None:
    """The log may have a message twice in a row: the cache stays known, and nothing is missing."""
    newest = kv.speaker.say(stored(1))
    assert kv.hears(newest)
    assert not kv.hears(newest)
    assert (kv.held, kv.member.cache_known, kv.projection.missing) == ({1}, True, [])


def test_a_repeat_is_skipped(kv: Kv) -> None:
    """A message that was folded before changes nothing, whenever it comes again."""
    first = kv.speaker.say(stored(1))
    assert kv.hears(first)
    kv.says(removed(1), stored(2))
    before = kv.projection.digest
    assert not kv.hears(first)
    assert (kv.held, kv.projection.digest, kv.member.cache_known) == ({2}, before, True)


def test_a_worker_that_left_is_over(kv: Kv) -> None:
    """Nothing follows WorkerLeft, and its blocks are gone."""
    kv.says(stored(1), WorkerLeft(reason="stopped"), stored(2))
    digest = kv.projection.digest
    assert (kv.held, kv.projection.members, kv.projection.alive, kv.projection.incomplete) == (set(), {}, {}, 0)
    assert (kv.projection.ended, digest) == ({A: "left: stopped"}, 0)
    assert not kv.says(joined(), restated(0, 1, 1))
    assert (kv.held, kv.projection.members, kv.projection.digest) == (set(), {}, digest)


def test_a_lost_worker_is_over_once() -> None:
    """The first WorkerLost from the worker's `-lost` source is final; whoever else says it is not heard."""
    kv = Kv()
    kv.says(stored(1), WorkerLost(by="ee" * 8, reason="said by itself"))
    stranger = Speaker("kv_0", "bb" * 8, about=A)
    assert not kv.hears(stranger.say(WorkerLost(by="ee" * 8, reason="said by a stranger")))
    assert kv.member.alive
    ends = [Speaker("kv_0", f"{A}-lost", about=A).say(WorkerLost(by="ee" * 8, reason=why)) for why in ("first", "then")]
    assert fold(kv.projection, *ends, ends[0]) == [True, False, False]
    assert (kv.held, kv.projection.members, kv.projection.ended) == (set(), {}, {A: "lost: first"})
    assert kv.projection.digest == 0
    assert not kv.says(restated(0, 1, 1))
    assert kv.held == set()


def test_a_worker_that_was_lost_before_we_heard_of_it_stays_lost() -> None:
    """The order in which a log that was cut gives it back does not matter."""
    projection = KvFold(PrefixIndex())
    end = Speaker("kv_0", f"{A}-lost", about=A).say(WorkerLost(by="ee" * 8, reason="silent"))
    assert fold(projection, end, Speaker("kv_0", A).say(joined())) == [True, False]
    assert (projection.members, projection.digest) == ({}, 0)


def test_a_stranger_leaves_nothing() -> None:
    """What stands on a worker's subject and is not its own word or its end makes no part."""
    projection = KvFold(PrefixIndex())
    stranger = Speaker("kv_0", "bb" * 8, about=A)
    assert fold(projection, stranger.say(joined(), stored(1))) == [False]
    assert (projection.members, projection.ended, projection.incomplete, projection.digest) == ({}, {}, 0, 0)


def test_tombstones_are_bounded() -> None:
    """TOMBSTONES_MAX of them are kept, with short reasons; the oldest goes first."""
    ended = Tombstones()
    for number in range(TOMBSTONES_MAX):
        ended.add(worker_id(number), "x" * (REASON_CHARS_MAX + 1))
    assert (len(ended), len(ended[worker_id(0)])) == (TOMBSTONES_MAX, REASON_CHARS_MAX)
    ended.add(worker_id(TOMBSTONES_MAX), "one more")
    assert (len(ended), worker_id(0) in ended, worker_id(1) in ended) == (TOMBSTONES_MAX, False, True)


def test_a_cache_restated_before_its_worker_is_known_stays_unknown(kv: Kv) -> None:
    """A log cut inside a restatement: without the word of who it is, nobody may rely on it."""
    kv.projection = KvFold(PrefixIndex())
    kv.says(restated(0, 1, 1, 2))
    assert (kv.held, kv.projection.incomplete) == (set(), 1)
    kv.says(joined())
    assert (kv.held, kv.projection.incomplete) == (set(), 1)
    kv.says(restated(0, 1, 1, 2))
    assert (kv.held, kv.projection.incomplete) == ({1, 2}, 0)


def test_a_gap_names_what_is_missing(kv: Kv) -> None:
    """By number; where no number is left out, the message before is another than the one that was read."""
    for _ in range(3):
        kv.loses(stored(1))
    kv.says(stored(2))
    kv.speaker.head = bytes(16)
    kv.says(stored(3))
    assert kv.projection.missing == [MissingMessages(kv.speaker.source, 1, 3), MissingMessages(kv.speaker.source, 4, 4)]


def recounted(fold: KvFold) -> int:
    """The digest made from the parts as they are now."""
    return sum(map(fold._weight, fold.alive.values())) & MASK64


def test_the_digest_is_that_of_the_parts() -> None:
    """After each message, whatever it says, and after a gap and an end."""
    site, (a, b, c) = Site(), (worker_id(number) for number in range(3))
    history: list[tuple[str, list[Event]]] = [
        (a, [stored(9)]),  # before it joined
        (a, [joined()]),
        (b, [joined("decode-1"), stored(1, 2, 3)]),
        (a, [stored(1, 2), stored(5, tier="host")]),
        (a, [removed(2)]),
        (b, [CacheCleared(), stored(7)]),
        (a, [restated(0, 2, 1)]),
        (a, [restated(1, 2, 4, 5)]),
        (a, [joined("renamed")]),
        (c, [joined("decode-2"), stored(3)]),
        (b, [WorkerLeft(reason="over")]),
    ]
    for worker, events in history:
        site.say(KV, worker, *events)
        assert recounted(site.state.kv[KV]) == site.state.kv[KV].digest
    site._speakers[KV, a].say(stored(99))  # never delivered: a gap
    site.say(KV, a, stored(6))
    assert recounted(site.state.kv[KV]) == site.state.kv[KV].digest
    lost = Speaker(KV, c + LOST_SUFFIX, about=c)
    site.hear(lost.say(WorkerLost(by="x", reason="silent")))
    assert recounted(site.state.kv[KV]) == site.state.kv[KV].digest
    site.state.index.store(WorkerId(a), "device", single([4]))
    assert recounted(site.state.kv[KV]) != site.state.kv[KV].digest


def test_what_a_kv_stream_does_not_carry_is_counted(kv: Kv) -> None:
    """Events of unknown types, or of another stream, change nothing but the count; tiers that are new hold nothing."""
    strange = encode_event(joined()).replace(b"WorkerJoined", b"WorkerJumped")
    kv.hears(kv.speaker.say_raw(strange, encode_event(load()), encode_event(stored(1))))
    assert (kv.projection.unknown_events, kv.held) == (2, {1})
    kv.says(stored(2, tier="moon"), removed(1, tier="moon"), restated(0, 1, 3, tier="moon"))
    assert (kv.held, kv.member.cache_known) == (set(), True)


def test_digests_of_two_folds_differ_while_they_differ() -> None:
    """One more message, or one block more in the same number of messages, is seen in the digest."""
    folds = [Kv(), Kv(), Kv()]
    assert len({kv.projection.digest for kv in folds}) == 1
    folds[0].says(BlocksStored(hashes=bytes(8) + b"\1" * 8))
    folds[1].says(BlocksStored(hashes=b"\1" * 8))
    assert len({kv.projection.digest for kv in folds}) == 3


def test_the_reprs_are_one_line(kv: Kv) -> None:
    """What a person sees in a log."""
    assert repr(kv.projection).startswith("<KvFold 1 of 1 workers alive, digest ")
    assert isinstance(kv.member.joined, WorkerJoined)


def test_an_end_in_one_stream_takes_nothing_from_another(kv: Kv) -> None:
    """Streams share the index; a loss written to a stream that the worker never spoke in leaves its blocks alone."""
    kv.says(stored(1, 2))
    digest, other = kv.projection.digest, KvFold(kv.projection.index)
    fold(other, Speaker("kv_1", A + "-lost", about=A).say(WorkerLost(by="x", reason="silent")))
    assert kv.held == {1, 2}
    assert (kv.projection.digest, recounted(kv.projection)) == (digest, digest)
    assert A in other.ended
