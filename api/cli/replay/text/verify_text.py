"""The result of `contrail replay verify`, for people and for scripts: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from core.event_json import hash_text, time_text
from replay.playback.fold_reports import FoldDifference
from replay.recording.gaps import RecordingGap
from replay.recording.participants import Participants
from replay.verify.chain_proof import ChainProof
from replay.verify.comparison import TERMS, DecisionSide
from replay.verify.judge import DecisionDifference
from replay.verify.prefill_decisions import PREFILL_TERMS, PrefillDifference, PrefillResult
from replay.verify.verify import VerifyResult

SHOWN = 10
"""In text; JSON has all that is kept."""
NOT_JUDGED = {"version": "given by another version of the program's rules"}


def prefill_answer(found: PrefillResult) -> str:
    """The sentence for a record in which these alone differ; empty if they do not."""
    if found.different:
        verdicts = f"{found.different:,} of {found.total:,} verdicts on where to compute a prompt"
        return f"Every decision follows from the log, but {verdicts} do not follow from what they rested on."
    if found.jobs.different:
        return f"Every decision follows from the log, but {found.jobs.different:,} times a prefill job was not as told."
    return ""


def prefill_differences(found: PrefillResult) -> Iterator[str]:
    """Each with both sides."""
    for it in found.differences[:SHOWN]:
        about = f"{it.request} attempt {it.attempt}, " if it.request else ""
        about += f"job {it.job}, " if it.job else ""
        yield f"  {about}said by {it.source_name} at {it.stream}:{it.seq} ({time_text(it.time_ms)})"
        yield f"    differs: {PREFILL_TERMS.get(it.term, it.term)} ({it.term})"
        yield f"      recorded {_value(it.recorded)}, recomputed {_value(it.recomputed)}"
    more = found.differ - SHOWN
    if more > 0:
        yield f"  … and {more:,} more of prefills"


def prefill_counts(found: PrefillResult) -> Iterator[str]:
    """Nothing where no worker could have had a prompt computed elsewhere."""
    if found.total:
        told = f"{found.verified:,} verdicts verified, {found.remote:,} of {found.total:,} asked others"
        told += f", {found.different:,} different" if found.different else ""
        yield f"  prefills    {told}"
        for reason, count in found.not_judged.items():
            yield f"  not judged  {count:,} verdicts: {NOT_JUDGED.get(reason, reason)}"
    jobs = found.jobs
    if jobs.asked:
        ends = [
            f"{jobs.pulled:,} pulled",
            *(f"{count:,} {reason.replace('_', ' ')}" for reason, count in jobs.cancelled.items()),
            *([f"{jobs.requester_ended:,} ended with their worker"] * bool(jobs.requester_ended)),
            *([f"{jobs.open:,} open"] * bool(jobs.open)),
            *([f"{jobs.different:,} times not as told"] * bool(jobs.different)),
        ]
        yield f"  jobs        {jobs.asked:,}: {', '.join(ends)}"
    if jobs.not_judged or jobs.untold:
        yield f"  not judged  {jobs.not_judged + jobs.untold:,} jobs or more: their messages are not all here"


def prefills_json(found: PrefillResult) -> dict[str, Any]:
    """Stable snake_case keys."""
    said: dict[str, Any] = msgspec.to_builtins(found)
    said["differences"] = [_difference_json(it) for it in found.differences]
    return said


def _difference_json(it: PrefillDifference) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(it)
    return said | {"time": time_text(said.pop("time_ms")), "request": it.request or None, "job": it.job or None}


def _value(value: Any) -> str:
    return value or "nothing" if isinstance(value, str) else msgspec.json.encode(value).decode()


"""Of each list, in text; JSON has all that is kept."""
MILLI = 1000
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


def verified_text(found: VerifyResult, names: Participants) -> str:
    """The page."""
    lines = [_answer(found), *_chains(found.proof)]
    lines += _limited([line for each in found.differences[:SHOWN] for line in difference_lines(each)], found)
    lines += [f"  {_fold_difference(each, names)}" for each in found.folds.differences[:SHOWN]]
    lines += prefill_differences(found.prefills)
    lines += ["", *_counts(found), *_gaps(found.gaps)]
    return "\n".join(lines)


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
        "prefills": prefills_json(found.prefills),
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
        broken = f"The record does not hold: {many(found.proof.broken, 'break')} in its chains"
        differ = found.different + found.refusals.different
        return f"{broken}, and {many(differ, 'decision')} do not follow from it." if differ else f"{broken}."
    if found.different or found.refusals.different:
        refused = f", nor {many(found.refusals.different, 'refusal')}" if found.refusals.different else ""
        return f"{found.different:,} of {many(found.decisions, 'decision')} do not follow from the log{refused}."
    if found.folds.different:
        return "Every decision follows from the log, but a replica's fold was not what the log gives."
    if prefill_answer(found.prefills):
        return prefill_answer(found.prefills)
    if found.unaccounted:
        return f"{many(found.unaccounted, 'decision')} came to no verdict: this is a bug in verify itself."
    return _all_well(found)


def _all_well(found: VerifyResult) -> str:
    left = sum(found.not_judged.values())
    if left:
        return f"{found.verified:,} of {many(found.decisions, 'decision')} follow from the log; {left:,} not judged."
    return (
        f"All {found.decisions:,} decisions follow from the log."
        if found.decisions
        else "No decision is in this range."
    )


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


def _limited(lines: list[str], found: VerifyResult) -> Iterator[str]:
    yield from lines
    more = found.different + found.refusals.different - SHOWN
    if more > 0:
        yield f"  … and {more:,} more; --write FILE has every decision"


def _fold_difference(it: FoldDifference, names: Participants) -> str:
    who, said = f"{names.replica(it.replica)} ({it.replica})", f"routing:{it.reported_seq}"
    ours, theirs = hash_text(it.refolded), hash_text(it.digest)
    return f"{who} had {theirs} as its fold of {it.stream} at {it.seq}, said at {said}; the log gives {ours}"


def _counts(found: VerifyResult) -> Iterator[str]:
    yield f"  verified    {found.verified:,}"
    if found.different:
        yield f"  different   {found.different:,}"
    for reason, count in found.not_judged.items():
        why = found.not_judged_why.get(reason, "")
        yield f"  not judged  {count:,}: {REASONS.get(reason, reason)}{f'; the first: {why}' if why else ''}"
    refusals = found.refusals
    if refusals.verified or refusals.different or refusals.not_judged:
        told = f"{refusals.verified:,} verified"
        told += f", {refusals.different:,} different" if refusals.different else ""
        told += f", {refusals.not_judged:,} not judged" if refusals.not_judged else ""
        yield f"  refusals    {told}"
    yield f"  replicas    {len(found.replicas)}"
    yield f"  chains      {_chains_told(found.proof)}"
    folds = found.folds
    not_judged = f", {folds.not_judged:,} not judged" if folds.not_judged else ""
    compared = f"{folds.compared:,} compared with what replicas said of theirs"
    yield f"  folds       {compared}, {folds.different:,} differ{not_judged}"
    yield from prefill_counts(found.prefills)
    yield f"  digest      {found.digest}"
    yield f"  speed       {found.decisions_per_s:,.0f} decisions/s, {found.seconds:.1f} s"


def _chains_told(proof: ChainProof) -> str:
    what = f"{proof.messages:,} messages of {many(proof.sources, 'source')}"
    if not proof.keyed:
        return f"{what} in order; not proved: give the deployment's key (--key-file) to prove what they say"
    if not proof.origin:
        return f"{what} in order; the export is redacted: its chains prove order, not origin"
    state = "hold" if proof.holds else f"do not hold, {many(proof.broken, 'break')}"
    return f"{what} {state}, checked with the deployment's key and against {many(proof.witnessed, 'witness')}"


def _gaps(gaps: list[RecordingGap]) -> Iterator[str]:
    if not gaps:
        yield "  gaps        none"
        return
    yield f"  gaps        {len(gaps)}"
    for lack in gaps[:SHOWN]:
        yield f"    {lack.text}"
    if len(gaps) > SHOWN:
        yield f"    … and {len(gaps) - SHOWN:,} more"


def many(count: int, what: str) -> str:
    """So many of them."""
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


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
