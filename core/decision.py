"""What a decision's record holds, by name: shared by the writer, `explain` and whoever reads the log."""

from __future__ import annotations

DECIDE_VERSION = 1
"""Changed whenever the same view and settings could give another choice."""

COLUMNS = (
    "cost",
    "overlap",
    "overlap_all",
    "pending",
    "prefill",
    "active_blocks",
    "active_requests",
    "waiting",
    "known",
)
"""Per recorded candidate: cost in thousandths of a weighted block; blocks of the prompt cached on the device, and in
any tier; blocks being computed there for another request; blocks to prefill there in thousandths (queued ones
included, credit taken off); blocks and requests in flight; requests waiting by its last report; 1 if its cache is
known, 0 after a gap in its chain."""

TIMED_COLUMNS = ("wait_us",)
"""Recorded beside these by policies that estimate times: how long prefills that are outstanding there would hold up a
new one. Under such a policy the cost is in microseconds, and what is queued has no part in the blocks to prefill."""

EXCLUDED_SHOWN_MAX = 4
"""Ids shown per exclusion reason; the count is always whole."""

LOCAL_REASONS = ("not_connected", "suspected", "failed", "stale", "cut_off")
"""What only one replica knows of a worker: it has no connection to it, its lease vanished, it just failed a request,
its load reports stopped; or so many stopped that the replica trusts its own ears less than the workers. Each change
is an event of its own (`LocalChanged`), so that no decision grows with the number of workers."""
