"""Where a decode worker has a prompt computed: a pure function of what it sees. No clock, no I/O."""

from __future__ import annotations

from typing import NamedTuple

from core.generation import PrefillReport
from core.kv_transfer import RECOMPUTED

REMOTE = "long"
"""The one reason to have a prompt computed elsewhere: that pays."""
REASONS = (REMOTE, "short", "no_prefill_worker", "queue_full", "log_away", "busy")
"""Why the verdict is what it is. `short`: what the cache lacks is not worth a transfer. `busy`: the same blocks are
being computed or pulled here for another request, and will be in the cache."""
OUTCOMES = frozenset({"", "pulled", "client_gone", *RECOMPUTED})
"""What may become of a job; empty where there was none."""


class PrefillInputs(NamedTuple):
    """All that the verdict rests on."""

    uncached_tokens: int
    queued: int
    workers: int
    min_tokens: int
    queue_max: int
    log_away: bool = False
    busy: bool = False


def decide_prefill(inputs: PrefillInputs) -> PrefillReport:
    """The verdict with its inputs: remote if the part of the prompt that the cache lacks is longer than one threshold
    and the queue shorter than another, and somebody is there to do it."""
    reason = _reason(inputs)
    return PrefillReport(remote=reason == REMOTE, reason=reason, **inputs._asdict())


def inputs_of(report: PrefillReport) -> PrefillInputs:
    """What a recorded verdict rested on."""
    return PrefillInputs(**{name: getattr(report, name) for name in PrefillInputs._fields})


def _reason(inputs: PrefillInputs) -> str:
    if inputs.uncached_tokens <= inputs.min_tokens:
        return "short"
    if not inputs.workers:
        return "no_prefill_worker"
    if inputs.queued >= inputs.queue_max:
        return "queue_full"
    if inputs.log_away:
        return "log_away"
    return "busy" if inputs.busy else REMOTE
