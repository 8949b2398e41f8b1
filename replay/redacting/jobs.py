"""Jobs without names: what of a prefill's events stays in a redacted log.

Ids of jobs and of workers are random and stay. Digests of prompts go: whoever guesses a prompt could prove it by them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import assert_never

from msgspec.structs import replace

from core.events.jobs import (
    JobEvent,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.generation import PrefillReport
from core.kv_transfer import TRANSPORTS
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS
from replay.redacting.names import TEXT, Names


def of_job(event: JobEvent, names: Names) -> JobEvent:
    """The event without names."""
    event = replace(event, job=names.id(event.job))
    match event:
        case PrefillRequested():
            names.note((event.request,))
            return replace(event, digest=names.text(event.digest), prefer=names.id(event.prefer))
        case PrefillPulled():
            return replace(event, worker=names.id(event.worker), transport=_known(event.transport, TRANSPORTS))
        case PrefillCancelled():
            return replace(event, reason=_known(event.reason, PREFILL_OUTCOMES), detail=names.text(event.detail))
        case PrefillStarted():
            return replace(event, requester=names.id(event.requester))
        case PrefillCompleted():
            return replace(
                event,
                requester=names.id(event.requester),
                layout=names.of("layout", event.layout),
                digest=names.text(event.digest),
                blocks=replace(event.blocks, request=names.text(event.blocks.request)),
            )
        case PrefillFailed():
            return replace(event, requester=names.id(event.requester), reason=names.text(event.reason))
        case _:
            assert_never(event)


def verdict(report: PrefillReport, names: Names) -> PrefillReport:
    """A decode worker's verdict without names."""
    return replace(
        report,
        reason=_known(report.reason, PREFILL_REASONS),
        job=names.id(report.job),
        worker=names.id(report.worker),
        outcome=_known(report.outcome, PREFILL_OUTCOMES),
        detail=names.text(report.detail),
    )


def _known(word: str, words: Container[str]) -> str:
    return word if word in words else TEXT
