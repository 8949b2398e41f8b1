"""The result of `contrail replay verify`, as a page and as JSON: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from api.cli.quantities import count_text, plural
from api.cli.renderer import OK, PROBLEM, WARNING, Facts, Mark, Text
from core.event_json import hash_text, time_text
from replay.playback.fold_reports import FoldDifference
from replay.recording.gaps import RecordingGap
from replay.recording.participants import Participants
from replay.verify.chain_proof import ChainProof
from replay.verify.judge import TERMS, DecisionDifference, DecisionSide
from replay.verify.prefills import PREFILL_TERMS, PrefillDifference, PrefillResult
from replay.verify.verify import VerifyResult

SHOWN = 10
"""Of each list, in text; JSON has all that is kept."""
MILLI = 1000
NOT_JUDGED = {"version": "given by another version of the program's rules"}


def _prefill_answer(found: PrefillResult) -> str:
    """The sentence for a record in which these alone differ; empty if they do not."""
    if found.different:
        verdicts = f"{found.different:,} of {count_text(found.total, 'verdict')} on where to compute a prompt"
        rested = plural(
            found.different, "does not follow from what it rested on", "do not follow from what they rested on"
        )
        return f"Every decision follows from the log, but {verdicts} {rested}."
    if found.jobs.different:
        times = count_text(found.jobs.different, "time")
        return f"Every decision follows from the log, but {times} a prefill job was not as told."
    return ""


def _prefill_differences(found: PrefillResult) -> Iterator[str]:
    """Each with both sides."""
    for it in found.differences[:SHOWN]:
        about = f"{it.request} attempt {it.attempt}, " if it.request else ""
        about += f"job {it.job}, " if it.job else ""
        yield f"  {about}said by {it.source_name} at {it.stream}:{it.seq} ({time_text(it.time_ms)})"
        yield f"    differs: {PREFILL_TERMS.get(it.term, it.term)} ({it.term})"
        yield f"      recorded {value_text(it.recorded)}, recomputed {value_text(it.recomputed)}"
    more = found.differ - SHOWN
    if more > 0:
        yield f"  … and {more:,} more of prefills"


def _prefill_counts(found: PrefillResult) -> Iterator[tuple[str, str]]:
    """Nothing where no worker could have had a prompt computed elsewhere."""
    if found.total:
        told = f"{count_text(found.verified, 'verdict')} verified, {found.remote:,} of {found.total:,} asked others"
        told += f", {found.different:,} different" if found.different else ""
        yield "prefills", told
        for reason, count in found.not_judged.items():
            yield "not judged", f"{count_text(count, 'verdict')}: {NOT_JUDGED.get(reason, reason)}"
    jobs = found.jobs
    if jobs.asked:
        ends = [
            f"{jobs.pulled:,} pulled",
            *(f"{count:,} {reason.replace('_', ' ')}" for reason, count in jobs.cancelled.items()),
            *([f"{jobs.requester_ended:,} ended with their worker"] * bool(jobs.requester_ended)),
            *([f"{jobs.open:,} open"] * bool(jobs.open)),
            *([f"{count_text(jobs.different, 'time')} not as told"] * bool(jobs.different)),
        ]
        yield "jobs", f"{jobs.asked:,}: {', '.join(ends)}"
    if unjudged := jobs.not_judged + jobs.untold:
        yield "not judged", f"{count_text(unjudged, 'job')} or more: their messages are not all here"


def _prefills_json(found: PrefillResult) -> dict[str, Any]:
    """Stable snake_case keys."""
    said: dict[str, Any] = msgspec.to_builtins(found)
    said["differences"] = [_difference_json(it) for it in found.differences]
    return said


def _difference_json(it: PrefillDifference) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(it)
    return said | {"time": time_text(said.pop("time_ms")), "request": it.request or None, "job": it.job or None}


REASONS = {
    "version": "decided by another version of the program's rules",
    "settings": "their settings are not in this recording",
    "replaced": "the history that they rest on was replaced",
    "end": "they rest on messages behind the end of this recording",
    "cut": "they rest on messages that retention took",
    "deleted": "they rest on messages that are missing here",
    "unknown": "messages of their own replica are missing",
    "gap": "they rest on messages that are missing in a chain",
    "repeat": "the same messages once more",
    "foreign": "signed by somebody else than the owner of the subject",
    "ended": "behind the end of their replica",
    "unreadable": "in messages that this program cannot read",
}


def verified_text(found: VerifyResult, names: Participants) -> Text:
    """The page."""
    left = bool(found.not_judged) or not found.decisions
    yield Mark(_answer(found), PROBLEM if not found.holds else WARNING if left else OK)
    yield from _chains(found.proof)
    for difference in found.differences[:SHOWN]:
        yield from difference_lines(difference)
    more = found.different + found.refusals.different - SHOWN
    if more > 0:
        yield f"  … and {more:,} more; --write FILE has every decision"
    yield from (f"  {_fold_difference(each, names)}" for each in found.folds.differences[:SHOWN])
    yield from _prefill_differences(found.prefills)
    yield ""
    yield Facts(_counts(found), 12)
    yield from (f"    {gap.text}" for gap in found.gaps[:SHOWN])
    if len(found.gaps) > SHOWN:
        yield f"    … and {len(found.gaps) - SHOWN:,} more"


def verified_json(found: VerifyResult, names: Participants) -> dict[str, Any]:
    """Stable snake_case keys."""
    return {
        "holds": found.holds,
        "decisions": found.decisions,
        "verified": found.verified,
        "different": found.different,
        "not_judged": found.not_judged,
        "not_judged_why": found.not_judged_why,
        "unaccounted": found.unaccounted,
        "differences": [difference_json(each) for each in found.differences],
        "refusals": msgspec.to_builtins(found.refusals),
        "folds": _folds_json(found, names),
        "prefills": _prefills_json(found.prefills),
        "chains": _chains_json(found.proof),
        "gaps": [_gap_json(lack) for lack in found.gaps],
        "replicas": [
            {"replica": replica, "name": names.replica(replica), "decisions": count}
            for replica, count in found.replicas.items()
        ],
        "seconds": round(found.seconds, 3),
        "decisions_per_s": round(found.decisions_per_s, 1),
        "digest": found.digest,
    }


# --- text --------------------------------------------------------------------------------------------------------


def _answer(found: VerifyResult) -> str:
    if not found.proof.holds:
        broken = f"The record does not hold: {count_text(found.proof.broken, 'break')} in its chains"
        differ = found.different + found.refusals.different
        follow = plural(differ, "does not follow", "do not follow")
        return f"{broken}, and {count_text(differ, 'decision')} {follow} from it." if differ else f"{broken}."
    if found.different or found.refusals.different:
        refused = f", nor {count_text(found.refusals.different, 'refusal')}" if found.refusals.different else ""
        follow = plural(found.different, "does not follow", "do not follow")
        return f"{found.different:,} of {count_text(found.decisions, 'decision')} {follow} from the log{refused}."
    if found.folds.different:
        return "Every decision follows from the log, but a replica's fold was not what the log gives."
    if prefills := _prefill_answer(found.prefills):
        return prefills
    if found.unaccounted:
        return f"{count_text(found.unaccounted, 'decision')} came to no verdict: this is a bug in verify itself."
    return _all_well(found)


def _all_well(found: VerifyResult) -> str:
    left = sum(found.not_judged.values())
    if left:
        follow = plural(found.verified, "follows", "follow")
        decisions = count_text(found.decisions, "decision")
        return f"{found.verified:,} of {decisions} {follow} from the log; {left:,} not judged."
    if not found.decisions:
        return "No decision is in this range."
    return f"All {found.decisions:,} {plural(found.decisions, 'decision follows', 'decisions follow')} from the log."


def _chains(proof: ChainProof) -> Iterator[str]:
    for each in proof.breaks[:SHOWN]:
        yield f"  {each.kind}: {each.what}"
    if proof.broken > SHOWN:
        yield f"  … and {proof.broken - SHOWN:,} more"


def difference_lines(it: DecisionDifference) -> Iterator[str]:
    """A decision that does not follow, with both sides."""
    where = f"routing:{it.seq} ({time_text(it.time_ms)})"
    yield f"  {it.request} attempt {it.attempt}, decided by {it.replica_name} at {where}"
    about = f" of {it.term_worker_name}" if it.term_worker else ""
    yield f"    first term that differs: {TERMS.get(it.term, it.term)}{about} ({it.term})"
    yield f"      recorded {value_text(it.term_recorded)}, recomputed {value_text(it.term_recomputed)}"
    yield f"    recorded   {side_line(it.recorded)}"
    yield f"    recomputed {side_line(it.recomputed)}"


def side_line(it: DecisionSide) -> str:
    """One side of a decision."""
    where = f"{it.name} ({it.worker}), cost {it.cost / MILLI:g}" if it.worker else "nobody"
    return f"{where}, digest {it.digest or 'none'}"


def value_text(value: Any) -> str:
    """A term's value."""
    return value or "nothing" if isinstance(value, str) else msgspec.json.encode(value).decode()


def _fold_difference(it: FoldDifference, names: Participants) -> str:
    who, said = f"{names.replica(it.replica)} ({it.replica})", f"routing:{it.reported_seq}"
    ours, theirs = hash_text(it.refolded), hash_text(it.digest)
    return f"{who} had {theirs} as its fold of {it.stream} at {it.seq}, said at {said}; the log gives {ours}"


def _counts(found: VerifyResult) -> Iterator[tuple[str, str]]:
    yield "verified", f"{found.verified:,}"
    if found.different:
        yield "different", f"{found.different:,}"
    for reason, count in found.not_judged.items():
        why = found.not_judged_why.get(reason, "")
        yield "not judged", f"{count:,}: {REASONS.get(reason, reason)}{f'; the first: {why}' if why else ''}"
    refusals = found.refusals
    if refusals.verified or refusals.different or refusals.not_judged:
        told = f"{refusals.verified:,} verified"
        told += f", {refusals.different:,} different" if refusals.different else ""
        told += f", {refusals.not_judged:,} not judged" if refusals.not_judged else ""
        yield "refusals", told
    yield "replicas", str(len(found.replicas))
    yield "chains", _chains_told(found.proof)
    folds = found.folds
    not_judged = f", {folds.not_judged:,} not judged" if folds.not_judged else ""
    compared = f"{folds.compared:,} compared with what replicas said of theirs"
    yield "folds", f"{compared}, {folds.different:,} {plural(folds.different, 'differs', 'differ')}{not_judged}"
    yield from _prefill_counts(found.prefills)
    yield "digest", found.digest
    yield "speed", f"{found.decisions_per_s:,.0f} decisions/s, {found.seconds:.1f} s"
    yield "gaps", f"{len(found.gaps) or 'none'}"


def _chains_told(proof: ChainProof) -> str:
    what = f"{count_text(proof.messages, 'message')} of {count_text(proof.sources, 'source')}"
    if not proof.keyed:
        return f"{what} in order; not proved: give the deployment's key (--key-file) to prove what they say"
    if not proof.origin:
        return f"{what} in order; the export is redacted: its chains prove order, not origin"
    state = "hold" if proof.holds else f"do not hold, {count_text(proof.broken, 'break')}"
    return f"{what} {state}, checked with the deployment's key and against {count_text(proof.witnessed, 'witness')}"


# --- JSON --------------------------------------------------------------------------------------------------------


def difference_json(it: DecisionDifference) -> dict[str, Any]:
    """The same with stable keys."""
    return {
        "request": it.request,
        "attempt": it.attempt,
        "replica": it.replica,
        "replica_name": it.replica_name,
        "stream": "routing",
        "seq": it.seq,
        "time": time_text(it.time_ms),
        "term": it.term,
        "term_worker": it.term_worker or None,
        "term_worker_name": it.term_worker_name or None,
        "term_recorded": it.term_recorded,
        "term_recomputed": it.term_recomputed,
        "recorded": msgspec.to_builtins(it.recorded),
        "recomputed": msgspec.to_builtins(it.recomputed),
    }


def _folds_json(found: VerifyResult, names: Participants) -> dict[str, Any]:
    folds = found.folds
    return {
        "compared": folds.compared,
        "different": folds.different,
        "not_judged": folds.not_judged,
        "differences": [
            {
                "replica": it.replica,
                "replica_name": names.replica(it.replica),
                "stream": it.stream,
                "seq": it.seq,
                "reported_seq": it.reported_seq,
                "time": time_text(it.time_ms),
                "digest": hash_text(it.digest),
                "refolded": hash_text(it.refolded),
            }
            for it in folds.differences
        ],
    }


def _chains_json(proof: ChainProof) -> dict[str, Any]:
    return {
        "holds": proof.holds,
        "keyed": proof.keyed,
        "origin": proof.origin,
        "messages": proof.messages,
        "sources": proof.sources,
        "witnessed": proof.witnessed,
        "broken": proof.broken,
        "breaks": msgspec.to_builtins(proof.breaks),
    }


def _gap_json(lack: RecordingGap) -> dict[str, Any]:
    return {
        "kind": lack.kind,
        "stream": lack.stream,
        "source": lack.source,
        "name": lack.name or None,
        "messages": lack.messages,
        "n_from": lack.n_from,
        "n_to": lack.n_to,
        "after_seq": lack.after,
        "noticed_seq": lack.noticed,
        "text": lack.text,
    }
