"""The result of `contrail replay verify`, as a verdict with tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.cli.quantities import count_text, plural
from api.cli.renderer import OK, PROBLEM, WARNING, Facts, Mark, Table, Text
from core.event_json import hash_text, time_text
from core.subjects import ROUTING
from replay.playback.fold_reports import FoldDifference
from replay.recording.gaps import RecordingGap
from replay.recording.participants import Participants
from replay.verify.chain_proof import ChainProof
from replay.verify.clock_offsets import OFFSET_REPORTED_MS, ClockOffset
from replay.verify.decision_counts import DecisionDeficit
from replay.verify.excerpt_proof import ExcerptProof
from replay.verify.judge import DecisionDifference, DecisionSide, term_text
from replay.verify.prefill_checks import PREFILL_TERMS, JobCounts, PrefillDifference
from replay.verify.scale_checks import ScaleDifference, ScaleResult
from replay.verify.verify import VerifyResult

SHOWN = 10
"""Items shown of each list in text; JSON has all that are kept."""
REASONS = {
    "version": "decided by rules of a newer program than this one",
    "settings": "their settings are not in this recording",
    "replaced": "the history that they depend on was replaced",
    "end": "they depend on messages behind the end of this recording",
    "cut": "they depend on messages that retention took",
    "deleted": "they depend on messages that are missing here",
    "unknown": "messages of their own replica are missing",
    "gap": "they depend on messages that are missing in a chain",
    "base": "their prompts continue those of decisions that are not here",
    "repeat": "the same messages once more",
    "foreign": "signed by another source than the owner of the subject",
    "ended": "behind the end of their replica",
    "unreadable": "in messages that this program cannot read",
}


# --- text --------------------------------------------------------------------------------------------------------


def verified_text(found: VerifyResult, names: Participants, *, strict: bool = False) -> Text:
    """The verdict, then the differences, then the counts. If `strict`, a line says what was not judged or proved."""
    is_partial, fails = bool(found.not_judged) or not found.decisions, strict and not found.complete
    is_partial = is_partial or bool(found.counts.dropped)
    yield Mark(verdict_text(found, names), PROBLEM if fails or not found.holds else WARNING if is_partial else OK)
    if fails and found.holds:
        yield f"  --strict: {incomplete_text(found)}"
    broken, folds, prefills = found.proof, found.folds, found.prefills
    yield from (f"  {each.kind}: {each.what}" for each in broken.breaks[:SHOWN])
    yield from more_lines(broken.broken, "")
    for difference in found.differences[:SHOWN]:
        yield from difference_lines(difference)
    yield from more_lines(found.different + found.refusals.different, "; --write FILE has every decision")
    yield from (f"  {_fold_difference(each, names)}" for each in folds.differences[:SHOWN])
    yield from more_lines(folds.different, " of folds")
    for each in prefills.differences[:SHOWN]:
        yield from _prefill_difference(each)
    yield from more_lines(prefills.differ, " of prefills")
    for size in found.scale.differences[:SHOWN] if found.scale is not None else ():
        yield from _scale_difference(size)
    yield from more_lines(found.scale.differ if found.scale is not None else 0, " of the fleet's size")
    yield from (f"  {_deficit(each, names)}" for each in found.counts.deficits[:SHOWN])
    yield from more_lines(len(found.counts.deficits), " such places")
    yield from ("", Table(("", "verified", "different", "not judged"), _counts(found), "<>>>", indent="  "), "")
    yield Facts(_facts(found, names), 12)
    yield from (f"    {loss}" for loss in found.proof.losses[:SHOWN])
    yield from more_lines(len(found.proof.losses), " losses")
    yield from (f"    {gap.text}" for gap in found.gaps[:SHOWN])
    yield from more_lines(len(found.gaps), " gaps")


def verdict_text(found: VerifyResult, names: Participants) -> str:
    """The answer as one sentence."""
    different, refusals = found.different, found.refusals.different
    decisions = count_text(found.decisions, "decision")
    if not found.proof.holds:
        differ = different + refusals
        and_differ = f", and {count_text(differ, 'decision')} {_follow(differ)} from it" if differ else ""
        return f"{_unproved_record(found.proof)}{and_differ}."
    if different or refusals:
        refused = f", nor {count_text(refusals, 'refusal')}" if refusals else ""
        return f"{different:,} of {decisions} {_follow(different)} from the log{refused}."
    if found.unaccounted:
        return f"{count_text(found.unaccounted, 'decision')} came to no verdict: this is a bug in verify itself."
    exception = _exception(found, names)
    return f"{_following(found)}{_dropped(found)}{f', but {exception}' if exception else ''}."


def _following(found: VerifyResult) -> str:
    """The sentence on the decisions, where none differs, without its full stop."""
    if kind := found.none_judged:
        return f"None of {count_text(found.unjudged[kind], kind)} was judged, so nothing is verified"
    if not_judged := found.unjudged["decision"]:
        decisions, follow = count_text(found.decisions, "decision"), plural(found.verified, "follows", "follow")
        return f"{found.verified:,} of {decisions} {follow} from the log; {not_judged:,} not judged"
    if not found.decisions:
        return "No decision is in this range"
    return f"All {found.decisions:,} {plural(found.decisions, 'decision follows', 'decisions follow')} from the log"


def incomplete_text(found: VerifyResult) -> str:
    """The kinds that are not judged, and chains that are not proved; empty of a result that is complete."""
    kinds = " and ".join(count_text(count, kind) for kind, count in found.unjudged.items() if count)
    proved = "" if found.proof.origin else "the chains are not proved with the deployment's key"
    dropped = f"{count_text(found.counts.dropped, 'decision')} dropped" if found.counts.dropped else ""
    in_gaps = sum(abs(each.missing) for each in found.counts.deficits)
    missing = f"{count_text(in_gaps, 'decision')} in missing messages" if in_gaps else ""
    return "; ".join(filter(None, (f"{kinds} not judged" if kinds else "", proved, dropped, missing)))


def _dropped(found: VerifyResult) -> str:
    """The decisions that are in no log; empty if none was dropped."""
    count = found.counts.dropped
    if not count:
        return ""
    return f"; {count:,} more {plural(count, 'was', 'were')} dropped and {plural(count, 'is', 'are')} in no log"


def _exception(found: VerifyResult, names: Participants) -> str:
    """A finding beside the decisions that does not follow from the log; empty if all do."""
    if found.counts.unexplained:
        return _missing(found.counts.unexplained[0], names)
    prefills, jobs = found.prefills, found.prefills.jobs
    if found.folds.different:
        return "a replica's fold was not the fold of the log"
    if prefills.different:
        verdicts = f"{prefills.different:,} of {count_text(prefills.total, 'verdict')} on where to compute a prompt"
        return f"{verdicts} {_follow(prefills.different)} from {plural(prefills.different, 'its', 'their')} inputs"
    if found.scale is not None and found.scale.differ:
        return f"{count_text(found.scale.differ, 'event')} on the fleet's size {_follow(found.scale.differ)} from it"
    if jobs.different:
        contradict = plural(jobs.different, "contradicts", "contradict")
        return f"{count_text(jobs.different, 'event')} of prefill jobs {contradict} it"
    return ""


def _follow(count: int) -> str:
    return plural(count, "does not follow", "do not follow")


def more_lines(count: int, what: str) -> Iterator[str]:
    """A line with the number of items behind those SHOWN, if there are any."""
    if count > SHOWN:
        yield f"  … and {count - SHOWN:,} more{what}"


def difference_lines(it: DecisionDifference) -> Iterator[str]:
    """A decision that does not follow, with both sides."""
    where = f"routing:{it.seq} ({time_text(it.time_ms)})"
    yield f"  {it.request} attempt {it.attempt}, decided by {it.replica_name} at {where}"
    term = term_text(it.term, it.term_worker_name, it.recorded, it.recomputed)
    yield f"    first term that differs: {term} ({it.term})"
    yield f"      recorded {value_text(it.term_recorded)}, recomputed {value_text(it.term_recomputed)}"
    yield f"    recorded   {side_line(it.recorded)}"
    yield f"    recomputed {side_line(it.recomputed)}"


def side_line(it: DecisionSide) -> str:
    """One side of a decision."""
    where = f"{it.name} ({it.worker}), cost {it.cost_text}" if it.worker else "no worker"
    return f"{where}, digest {it.digest or 'none'}"


def value_text(value: Any) -> str:
    """A term's value."""
    return value or "nothing" if isinstance(value, str) else msgspec.json.encode(value).decode()


def _fold_difference(it: FoldDifference, names: Participants) -> str:
    replica = f"{names.replica(it.replica)} ({it.replica})"
    reported = f"{it.stream}:{it.seq} had digest {hash_text(it.digest)} by the report at routing:{it.reported_seq}"
    return f"{replica}: the fold at {reported}; the log gives {hash_text(it.refolded)}"


def _missing(it: DecisionDeficit, names: Participants) -> str:
    count, replica = abs(it.missing), names.replica(it.replica)
    if it.missing < 0:
        return f"it has {count_text(count, 'decision')} that {replica} did not make, by its own count"
    are, they = plural(count, "is", "are"), plural(count, "it was", "they were")
    return f"{count_text(count, 'decision')} that {replica} made {are} not in it, and no event says that {they} dropped"


def _deficit(it: DecisionDeficit, names: Participants) -> str:
    begin = f"routing:{it.after_seq} ({time_text(it.after_ms)})" if it.after_seq else "its start"
    replica = f"{names.replica(it.replica)} ({it.replica})"
    found = [f"{count_text(it.dropped, 'decision')} and {count_text(it.dropped_others, 'other event')} dropped"]
    if it.missing:
        found.append(f"{count_text(it.missing, 'decision')} {'in missing messages' if it.in_gap else 'missing'}")
    return f"{replica}, from {begin} to routing:{it.seq} ({time_text(it.time_ms)}): {', '.join(found)}"


def _prefill_difference(it: PrefillDifference) -> Iterator[str]:
    about = f"{it.request} attempt {it.attempt}, " if it.request else ""
    about += f"job {it.job}, " if it.job else ""
    yield f"  {about}by {it.source_name} at {it.stream}:{it.seq} ({time_text(it.time_ms)})"
    yield f"    differs: {PREFILL_TERMS.get(it.term, it.term)} ({it.term})"
    yield f"      recorded {value_text(it.recorded)}, recomputed {value_text(it.recomputed)}"


def _scale_difference(it: ScaleDifference) -> Iterator[str]:
    yield f"  {it.event} at scale:{it.seq} ({time_text(it.time_ms)})"
    yield f"    differs: {it.term}"
    yield f"      recorded {value_text(it.recorded)}, recomputed {value_text(it.recomputed)}"


def _counts(found: VerifyResult) -> list[tuple[str, ...]]:
    """The rows of the table; kinds that the recording does not have are left out."""
    refusals, folds, prefills = found.refusals, found.folds, found.prefills
    rows = {
        "decisions": (found.verified, found.different, sum(found.not_judged.values())),
        "refusals": (refusals.verified, refusals.different, refusals.not_judged),
        "folds": (folds.equal, folds.different, folds.not_judged),
        "prefills": (prefills.verified, prefills.different, sum(prefills.not_judged.values())),
    }
    if (scale := found.scale) is not None:
        rows["fleet sizes"] = (scale.verified, scale.different, sum(scale.not_judged.values()))
        if (judged := scale.judgements) is not None:
            rows["judgements"] = (judged.verified, judged.different, sum(judged.not_judged.values()))
        rows["demand"] = (scale.periods_verified, scale.periods_different, scale.periods_not_judged)
    return [(kind, *(f"{each:,}" for each in row)) for kind, row in rows.items() if kind == "decisions" or any(row)]


def _facts(found: VerifyResult, names: Participants) -> Iterator[tuple[str, str]]:
    for reason, count in found.not_judged.items():
        why = found.not_judged_why.get(reason, "")
        yield "not judged", f"{count:,}: {REASONS.get(reason, reason)}{f'; the first: {why}' if why else ''}"
    for reason, count in found.prefills.not_judged.items():
        yield "not judged", f"{count_text(count, 'prefill verdict')}: {REASONS.get(reason, reason)}"
    prefills, jobs = found.prefills, found.prefills.jobs
    if prefills.total:
        prompts = count_text(prefills.total, "prompt")
        yield "prefills", f"{prefills.remote:,} of {prompts} requested from prefill workers"
    if jobs.asked:
        yield "jobs", _jobs(jobs)
    if unjudged := jobs.not_judged + jobs.untold:
        yield "not judged", f"{count_text(unjudged, 'job')} or more: their messages are not all here"
    yield "replicas", str(len(found.replicas))
    yield "chains", _chains(found.proof)
    yield "digest", found.digest
    yield "speed", f"{found.decisions_per_s:,.0f} decisions/s, {found.seconds:.1f} s"
    yield from _count_facts(found)
    if far := [it for it in found.proof.clock_offsets if it.sure_ms >= OFFSET_REPORTED_MS]:
        yield "clocks", _clocks(far, names)
    yield "gaps", f"{len(found.gaps) or 'none'}" + (" in the chains" if found.counts.dropped and not found.gaps else "")


def _clocks(far: list[ClockOffset], names: Participants) -> str:
    """The source that is furthest off, and how many others are, too."""
    it = far[0]
    bounds_s = sorted(abs(ms) / 1000 for ms in (it.least_ms, it.most_ms))
    way = "behind" if it.least_ms > 0 else "ahead of"
    others = f", and those of {count_text(len(far) - 1, 'other source')} by less" if len(far) > 1 else ""
    return (
        f"the times of {_source_name(it, names)} were {bounds_s[0]:.1f} to {bounds_s[1]:.1f} s {way} the broker's "
        f"at {it.stream}:{it.seq}{others}"
    )


def _count_facts(found: VerifyResult) -> Iterator[tuple[str, str]]:
    counts = found.counts
    if counts.dropped or counts.dropped_others:
        others = count_text(counts.dropped_others, "other event")
        yield "dropped", f"{count_text(counts.dropped, 'decision')} and {others}, by the statements of their replicas"
    if counts.compared:
        behind = f"; {counts.not_compared:,} not compared" if counts.not_compared else ""
        yield "counts", f"{count_text(counts.compared, 'decision')} as many as their replicas made{behind}"
    elif counts.not_compared:
        yield "counts", "not compared: no replica states how many decisions it made"


def _jobs(jobs: JobCounts) -> str:
    ends = {
        "pulled": jobs.pulled,
        **{reason.replace("_", " "): count for reason, count in jobs.cancelled.items()},
        "ended with their worker": jobs.requester_ended,
        "open": jobs.open,
        "contradicted": jobs.different,
    }
    return f"{jobs.asked:,}: {', '.join(f'{count:,} {end}' for end, count in ends.items() if count)}"


def _chains(proof: ChainProof) -> str:
    what = f"{count_text(proof.messages, 'message')} of {count_text(proof.sources, 'source')}"
    if not proof.keyed:
        return f"{what} in order; not proved: give the deployment's key (--key-file) to prove their content"
    if not proof.origin:
        return f"{what} in order; the export is redacted: its chains prove order, not origin"
    if proof.excerpt is not None and not proof.unproved:
        return _excerpt_chains(proof, proof.excerpt)
    state = f"do not hold, {count_text(proof.broken, 'break')}" if proof.broken else "hold"
    if proof.unproved:
        return f"{what}; {_unproved(proof)}" + (f"; {count_text(proof.broken, 'break')}" if proof.broken else "")
    return f"{what} {state}, checked with the deployment's key and against {count_text(proof.witnessed, 'witness')}"


SEALS = {
    "holds": "which holds",
    "broken": "which is broken",
    "missing": "which is missing",
    "unproved": "which is not checked without the key",
}


def _excerpt_chains(proof: ChainProof, it: ExcerptProof) -> str:
    """The parts of an excerpt that its chains prove, and those that its seal does."""
    broken = f"; {count_text(proof.broken, 'break')}" if proof.broken else ""
    places = f"{it.positions:,} of {count_text(it.positions + it.positions_sealed, 'place')} in chains"
    states = f"{count_text(it.states, 'state')} {plural(it.states, 'was', 'were')} cut"
    proved = f"{it.chained:,} of {count_text(proof.messages, 'message')}, and {places} of its states"
    rest = f"{count_text(it.sealed, 'message')} and how {states}"
    return (
        f"{proved}, are proved by the next message of their source; {rest} rest on the seal of the exporter, "
        f"{SEALS[it.seal]}{broken}"
    )


def _unproved_record(proof: ChainProof) -> str:
    """Of chains that do not hold."""
    if proof.broken:
        return f"The record does not hold: {count_text(proof.broken, 'break')} in its chains"
    return f"The record is not proved: {_unproved(proof)}"


def _unproved(proof: ChainProof) -> str:
    generations = ", ".join(map(str, sorted(proof.missing_generations))) or "of a snapshot"
    return f"{count_text(proof.unproved, 'message')} not judged, the key generation {generations} is missing"


# --- JSON --------------------------------------------------------------------------------------------------------


def verified_json(found: VerifyResult, names: Participants, *, strict: bool = False) -> dict[str, Any]:
    """Stable snake_case keys. If `strict`, `holds` needs all judged and proved."""
    prefills = [_timed(it, request=it.request or None, job=it.job or None) for it in found.prefills.differences]
    return {
        "holds": found.complete if strict else found.holds,
        "decisions": found.decisions,
        "verified": found.verified,
        "different": found.different,
        "not_judged": found.not_judged,
        "not_judged_why": found.not_judged_why,
        "unaccounted": found.unaccounted,
        "differences": [_difference_json(it) for it in found.differences],
        "refusals": found.refusals,
        "folds": {**_fields(found.folds), "differences": [_fold_json(it, names) for it in found.folds.differences]},
        "prefills": {**msgspec.to_builtins(found.prefills), "differences": prefills},
        **({"scale": _scale_json(found.scale)} if found.scale is not None else {}),
        "chains": {
            "holds": found.proof.holds,
            **{
                key: value
                for key, value in _fields(found.proof).items()
                if key not in {"gaps", "untold", "decision_counts", "clock_offsets"}
                and (key != "excerpt" or value is not None)
            },
        },
        "gaps": [_gap_json(gap) for gap in found.gaps],
        "dropped": {
            "decisions": found.counts.dropped,
            "others": found.counts.dropped_others,
            "places": [_deficit_json(it, names) for it in found.counts.deficits],
        },
        "counts": {
            "compared": found.counts.compared,
            "not_compared": found.counts.not_compared,
            "missing": sum(abs(it.missing) for it in found.counts.unexplained),
        },
        "clock_offsets": [_offset_json(it, names) for it in found.proof.clock_offsets],
        "replicas": [
            {"replica": replica, "name": names.replica(replica), "decisions": count}
            for replica, count in found.replicas.items()
        ],
        "seconds": round(found.seconds, 3),
        "decisions_per_s": round(found.decisions_per_s, 1),
        "digest": found.digest,
    }


_fields = msgspec.structs.asdict


def _scale_json(found: ScaleResult) -> dict[str, Any]:
    value = {**_fields(found), "differences": [_timed(it) for it in found.differences]}
    judged = value.pop("judgements")
    return value if judged is None else {**value, "judgements": _fields(judged)}


def _timed(it: msgspec.Struct, **changes: Any) -> dict[str, Any]:
    """The fields with these changes, and the time as text."""
    fields = {**_fields(it), **changes}
    return dict(("time", time_text(value)) if key == "time_ms" else (key, value) for key, value in fields.items())


def _difference_json(it: DecisionDifference) -> dict[str, Any]:
    value = _timed(it, term_worker=it.term_worker or None, term_worker_name=it.term_worker_name or None)
    first = ("request", "attempt", "replica", "replica_name")
    return {**{key: value.pop(key) for key in first}, "stream": ROUTING, **value}


def _fold_json(it: FoldDifference, names: Participants) -> dict[str, Any]:
    value = _timed(it, digest=hash_text(it.digest), refolded=hash_text(it.refolded))
    return {"replica": value.pop("replica"), "replica_name": names.replica(it.replica), **value}


def _deficit_json(it: DecisionDeficit, names: Participants) -> dict[str, Any]:
    return {
        "replica": it.replica,
        "replica_name": names.replica(it.replica),
        "decisions": it.dropped,
        "others": it.dropped_others,
        "missing": it.missing,
        "in_gap": it.in_gap,
        "stream": ROUTING,
        "after_seq": it.after_seq,
        "after": time_text(it.after_ms),
        "seq": it.seq,
        "time": time_text(it.time_ms),
    }


def _offset_json(it: ClockOffset, names: Participants) -> dict[str, Any]:
    return {**_fields(it), "name": _source_name(it, names)}


def _source_name(it: ClockOffset, names: Participants) -> str:
    return names.replica(it.source) if it.stream == ROUTING else names.worker(it.source)


def _gap_json(it: RecordingGap) -> dict[str, Any]:
    return {
        "kind": it.kind,
        "stream": it.stream,
        "source": it.source,
        "name": it.name or None,
        "messages": it.messages,
        "n_from": it.n_from,
        "n_to": it.n_to,
        "after_seq": it.after,
        "noticed_seq": it.noticed,
        "text": it.text,
    }
