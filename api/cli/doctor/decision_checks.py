"""Check of the newest decisions: they are made again by the code of `contrail replay verify`, which gives the sentence.

They stand in a copy of the end of the log. Its size is bounded, and each sentence says how much was judged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from api.cli.doctor.finding import Finding
from api.cli.doctor.newest_copy import MESSAGES_MAX, NewestCopy, TooLarge
from api.cli.output import show_progress
from api.cli.quantities import count_text
from api.cli.renderer import OK, PROBLEM, WARNING
from api.cli.replay.text.verify_text import incomplete_text, verdict_text
from core.errors import Corrupt, Refused
from replay.verify.verify import VerifyResult, verify


class VerifiedPart(NamedTuple):
    """The findings of `replay verify` on the end of the log."""

    result: VerifyResult
    sentence: str
    """The first line of `contrail replay verify`."""
    lacking: str
    """The kinds that are not judged or not proved; empty if there are none."""
    from_seq: int
    """Of the oldest message of the routing stream in which decisions were made again."""
    is_whole: bool
    """True if the log holds no decision before it."""


def verify_newest(copy: NewestCopy) -> VerifiedPart:
    """The decisions of the copy, made again. Refused or Corrupt if they cannot be judged."""
    recording = copy.recording
    found = verify(recording, copy.from_seq, progress=show_progress("deciding again", "decisions"))
    return VerifiedPart(
        found, verdict_text(found, recording.names), incomplete_text(found), copy.from_seq, copy.is_whole
    )


def check_decisions(found: VerifiedPart | TooLarge | Refused | Corrupt) -> Finding:
    """The newest decisions follow from the log, by the sentence of `contrail replay verify`; the status is a problem
    where its exit status is not 0."""
    if isinstance(found, Refused | Corrupt):
        return Finding("decisions", PROBLEM, f"The newest decisions cannot be judged: {found}.", {"judged": False})
    if isinstance(found, TooLarge):
        text = (
            f"No decision was made again here: that takes {count_text(found.messages, 'message')}, from a snapshot or "
            f"the log's start on, and doctor reads {MESSAGES_MAX:,} at most; ask `contrail replay verify`."
        )
        return Finding("decisions", WARNING, text, {"judged": False, "messages": found.messages})
    return _judged(found)


def _judged(found: VerifiedPart) -> Finding:
    result = found.result
    facts: dict[str, Any] = {
        "judged": True,
        "whole_log": found.is_whole,
        "from_seq": found.from_seq,
        "messages": result.proof.messages,
        "decisions": result.decisions,
        "verified": result.verified,
        "different": result.different,
        "not_judged": result.not_judged,
        "folds_different": result.folds.different,
        "chains_broken": result.proof.broken,
        "gaps": len(result.gaps),
    }
    part = "the whole log" if found.is_whole else f"the log from routing:{found.from_seq} on"
    text = f"In {part}, {count_text(result.proof.messages, 'message')}, by `replay verify`: {found.sentence}"
    if not result.holds:
        return Finding("decisions", PROBLEM, f"{text} {_cause(result)}".rstrip(), facts)
    if found.lacking:
        cause = _cause(result)
        text = f"{text} {_sentence(found.lacking)}{f' {cause}' if cause else ''}"
        return Finding("decisions", WARNING, text, facts)
    return Finding("decisions", OK, text, facts)


def _cause(result: VerifyResult) -> str:
    """The first reason of what is broken, different or not judged, with the command that names all; empty if none."""
    if result.proof.breaks:
        why = result.proof.breaks[0].what
    elif result.differences:
        it = result.differences[0]
        why = f"{it.request} by {it.replica_name} differs in {it.term}"
    else:
        why = next(iter(result.not_judged_why.values()), "")
    return f"The first: {why}; `contrail replay verify` names all." if why else ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
