"""The result of `contrail replay bisect` as text: the first difference, and the events just before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from api.cli.quantities import count_text, plural
from api.cli.renderer import OK, PROBLEM, Facts, Mark, Text
from api.cli.replay.text.verify_text import SHOWN, difference_lines, more_lines, side_line, value_text
from core.event_json import time_text
from replay.bisect.cache_comparison import CacheComparison, Restatement, StrayBlocks
from replay.bisect.first_difference import FirstDifference
from replay.bisect.replica_comparison import EarlierRunComparison, ReplicaComparison, StreamComparison
from replay.bisect.settings_comparison import SettingsComparison
from replay.bisect.version_comparison import VersionComparison
from replay.verify.judge import term_text


def departure_text(found: FirstDifference | None) -> Text:
    """The first decision that does not follow from the log."""
    if found is None:
        yield Mark("Every decision that can be judged follows from the log.", OK)
    else:
        yield from _departure(found)


def settings_text(found: SettingsComparison | None, first: str, second: str) -> Text:
    """The first decision that two settings make otherwise."""
    if found is None:
        yield f"Under {first} and under {second} every decision has the same choice."
        return
    where = f"routing:{found.seq} ({time_text(found.time_ms)})"
    yield f"They part at {found.request} attempt {found.attempt}, decided by {found.replica_name} at {where}."
    yield f"  {count_text(found.same, 'decision')} before it {plural(found.same, 'has', 'have')} the same choice"
    term = term_text(found.term, found.term_worker_name, found.first, found.second)
    yield f"  first term that differs: {term} ({found.term})"
    yield f"    {value_text(found.term_first)} under {first}, {value_text(found.term_second)} under {second}"
    sides = (("recorded", found.recorded), (first, found.first), (second, found.second))
    yield Facts([(f"{name} ", side_line(side)) for name, side in sides], 19)


def against_text(found: VersionComparison) -> Text:
    """The first decision that another version makes otherwise."""
    it = found.parting
    if it is None:
        made = plural(found.compared, "decision that both made is", "decisions that both made are")
        yield f"All {found.compared:,} {made} the same."
        return
    yield f"They part at {it.request} attempt {it.attempt}, decided by {it.replica_name} at routing:{it.seq}."
    same = f"{count_text(it.same, 'decision')} before it {plural(it.same, 'is', 'are')} the same in both"
    yield f"  {same}; what differs first: {it.what}"
    sides = (
        ("recorded", f"{it.recorded_worker or 'nobody'}, digest {it.recorded_digest}"),
        ("theirs", f"{it.their_worker or 'nobody'}, cost {it.their_cost / 1000:g}, digest {it.their_digest}"),
        ("this program", f"{it.our_worker or 'nobody'}, cost {it.our_cost / 1000:g}, digest {it.our_digest}"),
    )
    yield Facts(sides, 14)


def replicas_text(found: ReplicaComparison) -> Text:
    """Two replicas, stream by stream, and in short other lives of theirs."""
    names = _lives(found.replicas)
    apart = [stream for stream in found.streams if stream.first_different]
    compared = sum(stream.compared for stream in found.streams)
    if apart:
        yield Mark(f"{names} part in {', '.join(stream.stream for stream in apart)}.", PROBLEM)
    elif compared:
        yield Mark(f"{names} agree at all {count_text(compared, 'place')} that both reported.", OK)
    else:
        yield f"{names} reported no place in common: nothing can be compared."
    for stream in found.streams:
        yield from _stream(stream, found)
    for it in found.divergences[:SHOWN]:
        who = found.replicas.get(it.replica, it.replica)
        yield f"  {who} found at routing:{it.seq} of {it.stream}:{it.at_seq}: {it.verdict}"
    yield from more_lines(len(found.divergences), " divergences")
    if found.departure is None:
        yield "  every decision of both that can be judged follows from the log"
    else:
        yield ""
        yield from _departure(found.departure)
    yield from _other_lives(found.others)


def cache_text(found: list[CacheComparison]) -> Text:
    """A worker's index and cache, life by life."""
    parted = [it for it in found if it.first is not None]
    name, restated = found[0].name, sum(len(it.restatements) for it in found)
    if parted:
        yield Mark(f"The index and the cache of {name} parted: see the first restatement that differs.", PROBLEM)
    elif restated:
        yield Mark(f"At all {count_text(restated, 'restatement')} of {name} the index had what the cache holds.", OK)
    else:
        yield f"{name} restated nothing in this range: there is nothing to compare with."
    for it in found:
        yield f"  {it.name} ({it.worker}) in {it.stream}: {count_text(len(it.restatements), 'restatement')}"
        if it.first is not None:
            yield from _restatement(it.first, it.stream)
        yield from (f"    missing behind the last restatement: {gap}" for gap in it.gaps[:SHOWN])
        yield from more_lines(len(it.gaps), " gaps")


def _other_lives(others: list[EarlierRunComparison]) -> Iterator[str]:
    if not others:
        return
    yield ""
    yield "Each start is a life of its own, and these are the latest two. Of earlier ones only what they reported:"
    for it in others[:SHOWN]:
        how = "part, of" if it.part else "agree at all"
        yield f"  {_lives(it.replicas)} {how} {count_text(it.compared, 'place')}"
    if len(others) > SHOWN:
        parted = sum(it.part for it in others[SHOWN:])
        pairs = f"{len(others) - SHOWN:,} more {plural(len(others) - SHOWN, 'pair')}"
        yield f"  … and {pairs}, of which {parted} {plural(parted, 'parts', 'part')}"
    yield f"  To judge a pair of them, name it by id: --replicas {' '.join(others[0].replicas)}"


def _lives(replicas: Mapping[str, str]) -> str:
    return " and ".join(f"{name} ({replica})" for replica, name in replicas.items())


def _departure(found: FirstDifference) -> Text:
    it = found.difference
    which = f"{it.request} attempt {it.attempt}, at routing:{it.seq}"
    yield Mark(f"The first decision that does not follow from the log is {which}.", PROBLEM)
    before = f"{count_text(found.followed, 'decision')} before it {plural(found.followed, 'follows', 'follow')}"
    yield f"  {before}{f', {found.not_judged:,} cannot be judged' if found.not_judged else ''}"
    yield from difference_lines(it)
    if found.inputs_equal:
        yield "  all that it rests on is the same: the rules of this program are not those that decided"
        return
    if it.term == "prefill":
        yield "  every term before it is equal: what is queued there differs, or the rules of this program do"
    since = f"since its replica's decision before it ({found.before})" if found.before else "before it"
    if not found.near:
        yield f"  no event {since} touches that term: one that did is missing, or was never in the log"
        return
    yield f"  what touches that term {since}:"
    if found.near_total > len(found.near):
        earlier = found.near_total - len(found.near)
        yield f"    … {earlier:,} earlier {plural(earlier, 'one')}"
    for near in found.near:
        yield f"    {near.stream}:{near.seq} {time_text(near.time_ms)} {near.event}: {near.what}"


def _stream(it: StreamComparison, found: ReplicaComparison) -> Iterator[str]:
    if not it.first_different:
        last = f", the last is {it.last_equal}" if it.compared else ""
        yield f"  {it.stream}: equal at {count_text(it.compared, 'place')}{last}"
        return
    last = f"equal up to {it.last_equal}, " if it.last_equal else ""
    yield f"  {it.stream}: {last}different at {it.first_different}"
    for who, digest in it.digests.items():
        label = "the log gives" if who == "log" else f"{found.replicas.get(who, who)} had"
        yield f"    {label} {digest}{', which is wrong' if who in it.wrong else ''}"
    if it.history:
        yield "    they had not even read the same message there: history was replaced under one of them"
    yield f"    {count_text(it.between_total, 'message')} between:"
    for message in it.between:
        yield f"      {it.stream}:{message.seq} message {message.n} of {message.source}: {', '.join(message.events)}"
    if it.between_total > len(it.between):
        yield f"      … and {it.between_total - len(it.between):,} more"


def _restatement(it: Restatement, stream: str) -> Iterator[str]:
    where = f"{stream}:{it.seq} ({time_text(it.time_ms)})"
    yield f"    first at {where}, where the cache holds {count_text(it.blocks, 'block')}:"
    for gap in it.gaps:
        yield f"      missing since the restatement before: {gap}"
    for stray in it.missed_removals:
        yield f"      {_stray(stray, stream)}: the cache had lost them, and no removal was told"
    for stray in it.missed_stores:
        yield f"      {_stray(stray, stream)}: the cache held them, and no store was told"


def _stray(it: StrayBlocks, stream: str) -> str:
    last = "nothing here speaks of them"
    if it.said is not None:
        last = f"last spoken of by {it.said.event} at {stream}:{it.said.seq} (message {it.said.n})"
    shown = ", ".join([*it.hashes[:2], *(["…"] if it.blocks > 2 else [])])
    return f"{count_text(it.blocks, 'block')} on the {it.tier} ({shown}), {last}"
