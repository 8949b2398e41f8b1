"""The parts of `/state` of one replica: keys that tools rely on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from actors.membership.routing_publisher import RoutingPublisher
from actors.router.scheduler_counts import PrefillCounts
from core.event_json import hash_text
from core.settings import TIERS
from projections.digest import FOLD_VERSION
from projections.folds.jobs_fold import JobsFold, prefill_queue
from projections.folds.state import DISK, State
from projections.runner.runner import Runner

GAPS_SHOWN_MAX = 16
"""The last gaps; `gaps_found` counts all."""
SOURCES_SHOWN_MAX = 16
"""Sources of another key; each process of another deployment is one."""


def fold_status(state: State, runner: Runner) -> dict[str, Any]:
    """Position of the fold in the log, its lag, and its gaps. O(workers)."""
    return {
        "fold_version": FOLD_VERSION,
        "cursor": {stream: at.seq for stream, at in state.cursor.items()},
        "digest": hash_text(state.digest),
        "lag_events": runner.lag_events,
        "lag_ms": runner.lag_ms,
        "events_per_s": round(runner.events_per_s, 1),
        "incomplete": state.incomplete,
        "corrupt": state.corrupt,
        "unknown_events": state.unknown_events,
        "gaps_found": runner.gaps,
        "gaps": [gap._asdict() for gap in list(state.gaps)[-GAPS_SHOWN_MAX:]],
        "dropped_in_log": [
            {
                "replica": replica,
                "name": state.routing.name(replica),
                "decisions": counts.dropped,
                "others": counts.dropped_others,
            }
            for replica, counts in state.routing.dropped.items()
        ],
        "foreign_sources": sorted(state.foreign)[:SOURCES_SHOWN_MAX],
        "started_from": runner.started_from,
        "refused_snapshots": runner.refused,
        "rebuilding": runner.rebuilding,
        "rebuilds": runner.rebuilds,
        "resets": runner.resets,
        "workers": {member.worker: state.index.blocks(member.worker) for member in state.alive()},
        "pools": [
            {
                "source": member.worker,
                "pool": member.pool.pool,
                "keeper": member.pool.keeper,
                "blocks": sum(state.index.blocks(member.worker, tier) for tier in TIERS[DISK:]),
            }
            for member in state.pools()
            if member.pool
        ],
    }


def prefill_status(jobs: JobsFold, now_ms: int, counts: PrefillCounts) -> dict[str, Any]:
    """The queue of prefill jobs, and the results for this replica's prompts. O(workers + open jobs)."""
    return {**prefill_queue(jobs, now_ms)._asdict(), "verdicts": counts.describe()}


def publisher_status(publisher: RoutingPublisher) -> dict[str, Any]:
    """Events of this replica that the log has not acknowledged."""
    return {
        "ahead": len(publisher.pending_events),
        "outbox": {"events": publisher.outbox.depth, "bytes": publisher.outbox.bytes},
        "journal": publisher.journal._asdict(),
        "dropped": dropped_status(publisher),
        "log_away_s": round(publisher.outbox.away_s, 1),
    }


def dropped_status(publisher: RoutingPublisher) -> dict[str, Any]:
    """Decisions and other events of this replica that are in no log, and the times between which they were dropped."""
    counts, times_ms = publisher.counts, publisher.outbox.dropped_ms
    from_ms, to_ms = times_ms or (None, None)
    return {"decisions": counts.dropped, "others": counts.dropped_others, "from_ms": from_ms, "to_ms": to_ms}


def rss_bytes() -> int:
    """Memory of this process in use now, in bytes; where the system does not report it, the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
