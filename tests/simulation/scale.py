"""What is smaller in a world than in production, so that a few virtual seconds meet every bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import actors.consistency.snapshot_schedule
import actors.disagg.remote_prefill
import actors.membership.failure_detector
import actors.membership.routing_publisher
import actors.router.request_scheduler
import projections.policy.binding_plan
from actors.disagg.prefill_role import PrefillRole
from streams.log import QUEUE_LIMITS
from streams.outbox.journal_file import JournalFile
from streams.outbox.outbox import Outbox
from tests.simulation.loop import PROCESS
from tests.simulation.options import Options

SNAPSHOT_EVENTS_MIN = 20
MANIFEST_READ_EVERY_MS = 1000
PULL_TIMEOUT_S = 4.0
PREFILL_WAIT_MAX_MS = 3000
MUTE_S, SILENT_S = 1.0, 3.0
"""The second is longer than a message may take, and shorter than a way may be cut."""
QUEUE = QUEUE_LIMITS._replace(ack_wait_s=1.5)


@contextmanager
def scaled(options: Options) -> Iterator[None]:
    """Within it, bounds are as the options say, and every journal that a process opens is known to it."""
    defaults = Outbox.__init__.__kwdefaults__
    prefill_defaults = PrefillRole.__init__.__kwdefaults__
    assert defaults is not None
    assert prefill_defaults is not None
    with ExitStack() as patches:
        patches.enter_context(
            mock.patch.object(actors.consistency.snapshot_schedule, "MIN_EVENTS", SNAPSHOT_EVENTS_MIN)
        )
        patches.enter_context(
            mock.patch.object(actors.consistency.snapshot_schedule, "READ_EVERY_MS", MANIFEST_READ_EVERY_MS)
        )
        patches.enter_context(mock.patch.object(actors.disagg.remote_prefill, "PULL_TIMEOUT_S", PULL_TIMEOUT_S))
        patches.enter_context(mock.patch.multiple(actors.membership.failure_detector, MUTE_S=MUTE_S, SILENT_S=SILENT_S))
        patches.enter_context(mock.patch.dict(prefill_defaults, {"limits": QUEUE}))
        patches.enter_context(mock.patch.object(JournalFile, "__init__", _known_to_its_process(JournalFile.__init__)))
        if options.pass_tokens:
            light, small = options.pass_tokens // 4, options.pass_tokens // 8
            of_a_pass = mock.patch.multiple(
                projections.policy.binding_plan, PASS_TOKENS=options.pass_tokens, LIGHT_TOKENS=light, SMALL_TOKENS=small
            )
            patches.enter_context(of_a_pass)
            patches.enter_context(mock.patch.object(actors.router.request_scheduler, "LIGHT_TOKENS", light))
        if options.pending_events_max:
            voices = replace(actors.membership.routing_publisher.LIMITS, pending_events_max=options.pending_events_max)
            others = replace(defaults["limits"], pending_events_max=options.pending_events_max)
            patches.enter_context(mock.patch.object(actors.membership.routing_publisher, "LIMITS", voices))
            patches.enter_context(mock.patch.dict(defaults, {"limits": others}))
        yield


def _known_to_its_process(init: Any) -> Any:
    def known(self: JournalFile, path: Path, descriptor: int, *rest: Any) -> None:
        init(self, path, descriptor, *rest)
        process = PROCESS.get()
        if process is not None:
            process.files.append(self)

    return known
