"""Mutants: bugs to be planted one at a time, each an exact replacement in one source file.

The list imports nothing of the program: a mutant is planted before the program is imported (`tests.mutation.planting`).
"""

from __future__ import annotations

from typing import NamedTuple

POLICY, FOLDS, INDEX = "projections/policy", "projections/folds", "projections/index"
SUITES: dict[str, tuple[str, ...]] = {
    "costs": ("tests/projections/policy/test_decide.py", "tests/projections/policy/test_policies.py"),
    "ties": ("tests/projections/policy/test_policies.py", "tests/projections/policy/test_decide.py"),
    "candidates": ("tests/projections/policy/test_decide.py",),
    "backlog": ("tests/projections/policy/test_prefill_backlog.py",),
    "learning": ("tests/projections/policy/test_prefill_time.py",),
    "chains": ("tests/projections/folds/test_kv_fold.py", "tests/projections/folds/test_state.py"),
    "folds": ("tests/projections/folds/test_kv_fold.py", "tests/projections/folds/test_routing_fold.py"),
    "jobs": ("tests/projections/folds/test_jobs_fold.py",),
    "tally": (
        "tests/projections/folds/test_pending_events.py",
        "tests/projections/policy/test_view_pending.py",
        "tests/projections/policy/test_pending_prefixes.py",
        "tests/projections/folds/test_routing_fold.py",
    ),
    "approximate": ("tests/projections/folds/test_approximate_index.py",),
    "index": (
        "tests/projections/index/test_block_changes.py",
        "tests/projections/index/test_prefix_index.py",
        "tests/projections/index/test_worker_sets.py",
    ),
    "gallop": ("tests/projections/index/test_prefix_index.py", "tests/projections/index/test_prefix_index_peer.py"),
    "snapshot codec": ("tests/projections/folds/test_snapshot.py", "tests/projections/index/test_index_dump.py"),
    "holding": ("tests/projections/policy/test_placement.py", "tests/projections/policy/test_binding_plan.py"),
    "fairness": ("tests/projections/policy/test_fair_queue.py", "tests/projections/policy/test_binding_plan.py"),
    "declining": ("tests/projections/policy/test_busy_workers.py", "tests/projections/policy/test_binding_plan.py"),
    "prefill verdicts": ("tests/projections/policy/test_preferred_worker.py",),
    "what-if": ("tests/replay/whatif/test_whatif.py",),
}
"""Tests of each area, the quickest first: they run where neither verify nor a digest names a mutant."""


class Mutant(NamedTuple):
    """One bug."""

    name: str
    area: str
    """A key of SUITES."""
    file: str
    old: str
    """Text that occurs once in the file …"""
    new: str
    """… and the text in its place."""
    equivalent: str = ""
    """The argument why no behaviour changes, of a mutant that survives for that reason; else empty."""


MUTANTS: tuple[Mutant, ...] = (
    # costs
    Mutant(
        "cost-sign",
        "costs",
        f"{POLICY}/cost.py",
        "if kv:\n            active_m = (active_blocks + hold)",
        "if kv:\n            active_m = -(active_blocks + hold)",
    ),
    Mutant(
        "cost-without-hold", "costs", f"{POLICY}/cost.py", "(active_blocks + hold) * MILLI", "active_blocks * MILLI"
    ),
    Mutant(
        "cost-request-weight",
        "costs",
        f"{POLICY}/cost.py",
        "+ per_request * active_requests) // MILLI",
        "+ per_request * waiting) // MILLI",
    ),
    Mutant(
        "cost-waiting-twice",
        "costs",
        f"{POLICY}/cost.py",
        "cost = (active_requests + waiting) * MILLI",
        "cost = (active_requests + 2 * waiting) * MILLI",
    ),
    Mutant("cost-queued-shared", "costs", f"{POLICY}/cost.py", "            queued -= shared * MILLI\n", ""),
    Mutant(
        "cost-stale-full",
        "costs",
        f"{POLICY}/cost.py",
        "            credit = credit * settings.stale_credit_m // MILLI\n        prefill_m = queued",
        "            credit = credit\n        prefill_m = queued",
    ),
    Mutant(
        "cost-pending-at-boundary",
        "costs",
        f"{POLICY}/cost.py",
        "if shared > 0:  # blocks that both",
        "if shared > 1:  # blocks that both",
    ),
    Mutant(
        "cost-tier-credit",
        "costs",
        f"{POLICY}/cost.py",
        "credit += (depth - before) * credit_m",
        "credit += depth * credit_m",
    ),
    Mutant("cost-tier-order", "costs", f"{POLICY}/cost.py", "            before = depth\n", "            before = 0\n"),
    Mutant(
        "time-stale-full",
        "costs",
        f"{POLICY}/cost.py",
        "            credit = credit * settings.stale_credit_m // MILLI\n        prefill_m = needed_m",
        "            credit = credit\n        prefill_m = needed_m",
    ),
    Mutant(
        "time-rounds-down",
        "costs",
        f"{POLICY}/cost.py",
        "own = base_us + per_token_m * -(-prefill_m * size // MILLI)",
        "own = base_us + per_token_m * (prefill_m * size // MILLI)",
    ),
    Mutant("time-without-wait", "costs", f"{POLICY}/cost.py", "cost = wait_us(worker, 0)", "cost = 0"),
    Mutant(
        "time-active-weight",
        "costs",
        f"{POLICY}/cost.py",
        "cost += per_active * active_blocks // MILLI",
        "cost += per_active * active_requests // MILLI",
    ),
    Mutant(
        "session-bound",
        "costs",
        f"{POLICY}/cost.py",
        "cost = cost - bound_us if cost > bound_us else 0",
        "cost = cost if cost > bound_us else 0",
    ),
    # ties and draws
    Mutant(
        "tie-without-attempt",
        "ties",
        f"{POLICY}/policies.py",
        'return f"{request.id}/{request.attempt}/".encode()',
        'return f"{request.id}/0/".encode()',
    ),
    Mutant("tie-by-id", "ties", f"{POLICY}/policies.py", "        order.sort(key=tie)\n", "        pass\n"),
    Mutant(
        "tie-margin-exclusive", "ties", f"{POLICY}/policies.py", "if costs[at] <= highest", "if costs[at] < highest"
    ),
    Mutant(
        "round-robin-ahead",
        "ties",
        f"{POLICY}/policies.py",
        "chosen = turn % len(scored)",
        "chosen = (turn + 1) % len(scored)",
    ),
    Mutant("two-of-equal", "ties", f"{POLICY}/policies.py", "second + (second >= first)", "second + (second > first)"),
    Mutant(
        "two-of-dearer",
        "ties",
        f"{POLICY}/policies.py",
        "return second if costs[second] < costs[first] else first",
        "return second if costs[second] <= costs[first] else first",
    ),
    Mutant(
        "temperature-steps",
        "ties",
        f"{POLICY}/policies.py",
        "SOFT_TABLE[steps % SOFT_STEPS] >> (steps // SOFT_STEPS)",
        "SOFT_TABLE[steps % SOFT_STEPS]",
    ),
    Mutant("temperature-table", "ties", f"{POLICY}/policies.py", "4112874773", "4112874733"),
    Mutant("session-tokens", "ties", f"{POLICY}/policies.py", "SESSION_TOKENS = 128", "SESSION_TOKENS = 64"),
    # candidates and the view
    Mutant(
        "overloaded-at-bound",
        "candidates",
        f"{POLICY}/candidates.py",
        "elif waiting >= waiting_max:",
        "elif waiting > waiting_max:",
    ),
    Mutant(
        "draining-serves",
        "candidates",
        f"{POLICY}/candidates.py",
        "        elif draining:\n",
        "        elif draining and waiting:\n",
    ),
    Mutant("last-resort-always", "candidates", f"{POLICY}/candidates.py", "    if not left:\n", "    if doubtful:\n"),
    Mutant(
        "last-reason-counts",
        "candidates",
        f"{POLICY}/candidates.py",
        "for reason in reversed(EXCLUSION_REASONS):",
        "for reason in EXCLUSION_REASONS:",
    ),
    Mutant(
        "routed-of-fold-alone", "candidates", f"{POLICY}/view.py", " + self.pending_events.routed.get(model, 0)", ""
    ),
    Mutant("load-of-fold-alone", "candidates", f"{POLICY}/view.py", "known.requests + busy.requests", "known.requests"),
    Mutant(
        "approximate-expiry",
        "approximate",
        f"{POLICY}/view.py",
        "since_ms = max(NEVER, now_ms - ttl_ms)",
        "since_ms = max(NEVER, now_ms - 2 * ttl_ms)",
    ),
    # outstanding prefills, and what is learned of them
    Mutant("backlog-slack", "backlog", f"{POLICY}/prefill_backlog.py", "SLACK_M = 1050", "SLACK_M = 1000"),
    Mutant(
        "backlog-order",
        "backlog",
        f"{POLICY}/prefill_backlog.py",
        "sorted(outstanding) if len(outstanding) > 1 else outstanding",
        "outstanding",
    ),
    Mutant(
        "backlog-held",
        "backlog",
        f"{POLICY}/prefill_backlog.py",
        "waits[worker] = waits.get(worker, 0) + held",
        "waits[worker] = held",
    ),
    Mutant("learned-median", "learning", f"{POLICY}/prefill_time.py", "(len(numbers) - 1) // 2", "len(numbers) // 2"),
    Mutant(
        "learned-refit",
        "learning",
        f"{POLICY}/prefill_time.py",
        "not known.noted % REFIT_EVERY",
        "known.noted % REFIT_EVERY == 1",
    ),
    # chains
    Mutant(
        "chain-without-head",
        "chains",
        f"{FOLDS}/source_fold.py",
        "fits = message.n == self.n_next and message.prev == self.head",
        "fits = message.n == self.n_next",
    ),
    Mutant(
        "chain-gap-kept",
        "chains",
        f"{FOLDS}/source_fold.py",
        "            self._void(part)\n            if",
        "            if",
    ),
    Mutant(
        "chain-repeat-applied",
        "chains",
        f"{FOLDS}/source_fold.py",
        "if message.n < self.n_next:",
        "if message.n + 1 < self.n_next:",
    ),
    Mutant(
        "chain-end-kept",
        "chains",
        f"{FOLDS}/source_fold.py",
        "            self._digest = (self._digest - part.digest) & MASK64\n        self.unknown",
        "            pass\n        self.unknown",
    ),
    # folds
    Mutant(
        "cleared-is-known",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "self._forget(member, known=member.cache_known)",
        "self._forget(member, known=True)",
    ),
    Mutant(
        "cleared-is-kept",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "                self._forget(member, known=member.cache_known)\n",
        "                pass\n",
    ),
    Mutant(
        "restated-adds",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "        self._forget(member, known=True)\n        for part",
        "        member.cache_known = True\n        for part",
    ),
    Mutant(
        "restated-parts",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "        if event.part != len(member.restated):\n            member.restated = []\n",
        "",
    ),
    Mutant(
        "unknown-cache-stores",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "if member.cache_known and event.tier in TIERS:\n                    self.index.store",
        "if event.tier in TIERS:\n                    self.index.store",
    ),
    Mutant(
        "removed-is-kept",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "self.index.remove(member.worker, event.tier, event.blocks)",
        "pass",
    ),
    Mutant("ended-worker-serves", "folds", f"{FOLDS}/kv_fold.py", "            self.alive.pop(source, None)\n", ""),
    Mutant(
        "load-first-report",
        "folds",
        f"{FOLDS}/load_fold.py",
        "self.reports[part.worker] = event",
        "self.reports.setdefault(part.worker, event)",
    ),
    Mutant(
        "local-adds-up",
        "folds",
        f"{FOLDS}/routing_fold.py",
        "    before = part.local.pop(worker, ())\n",
        "    before = part.local.get(worker, ())\n",
    ),
    Mutant(
        "settings-revision",
        "folds",
        f"{FOLDS}/routing_fold.py",
        "part.settings, part.settings_revision = event.settings, event.revision",
        "part.settings, part.settings_revision = event.settings, part.settings_revision",
    ),
    Mutant("restated-replica-counts", "folds", f"{FOLDS}/routing_fold.py", "        part.routed.clear()\n", ""),
    Mutant(
        "finished-is-in-flight",
        "folds",
        f"{FOLDS}/routing_fold.py",
        "        part.predicted.pop(key, None)\n        self._take(part, key)\n",
        "        part.predicted.pop(key, None)\n",
    ),
    Mutant(
        "lost-replica-in-flight",
        "folds",
        f"{FOLDS}/routing_fold.py",
        "            self._forget(part)\n            part.ended = reason",
        "            part.ended = reason",
    ),
    # jobs
    Mutant(
        "job-pulled-stays",
        "jobs",
        f"{FOLDS}/jobs_fold.py",
        "            part.asked.pop(event.job, None)\n        case PrefillStarted",
        "            pass\n        case PrefillStarted",
    ),
    Mutant(
        "job-count-trusted",
        "jobs",
        f"{FOLDS}/jobs_fold.py",
        "        if part.known and event.open != part.open:\n            _forget(part)\n"
        "            _count(part, event, sent_ms)\n",
        "",
    ),
    Mutant(
        "job-gap-kept",
        "jobs",
        f"{FOLDS}/jobs_fold.py",
        "    part.known = False\n    part.asked.clear()\n",
        "    part.known = False\n",
    ),
    # the tally of requests in flight, and own events
    Mutant(
        "tally-leak", "tally", f"{FOLDS}/in_flight.py", "busy.requests += sign\n", "busy.requests += max(sign, 0)\n"
    ),
    Mutant("tally-prefill-leak", "tally", f"{FOLDS}/in_flight.py", "            self.weigh_prefill(entry, -1)\n", ""),
    Mutant(
        "tally-prompt-leak",
        "tally",
        f"{FOLDS}/in_flight.py",
        "            self.weigh_prefill(entry, -1)\n            _drop(self.prefills, entry.worker, entry)\n",
        "            self.weigh_prefill(entry, -1)\n",
    ),
    Mutant(
        "tally-pending-leak",
        "tally",
        f"{FOLDS}/in_flight.py",
        "            _drop(self.prefills, entry.worker, entry)\n"
        "            _drop(self._pending, entry.hashes[:HASH_BYTES], entry)\n\n    def computed",
        "            _drop(self.prefills, entry.worker, entry)\n\n    def computed",
    ),
    Mutant(
        "shared-depth",
        "tally",
        f"{FOLDS}/in_flight.py",
        "        if hashes[end - HASH_BYTES : end] == block(middle):\n            low = middle",
        "        if hashes[end - HASH_BYTES : end] == block(middle):\n            low = high = middle",
    ),
    Mutant(
        "own-event-twice",
        "tally",
        f"{FOLDS}/pending_events.py",
        "            self.in_flight_load.weigh_prefill(before, 1)\n",
        "",
    ),
    Mutant(
        "own-restatement-count",
        "tally",
        f"{FOLDS}/pending_events.py",
        "{model: -known.get(model, 0) - self.routed.get(model, 0)",
        "{model: -known.get(model, 0)",
    ),
    Mutant(
        "own-first-token",
        "tally",
        f"{FOLDS}/pending_events.py",
        "if entry is None and folded is not None and key not in self.computed:",
        "if entry is None and folded is not None:",
    ),
    Mutant(
        "own-believed-kept",
        "tally",
        f"{FOLDS}/pending_events.py",
        "            self.believed.clear()  # some",
        "            pass  # some",
    ),
    # approximate indexes
    Mutant(
        "believed-expiry",
        "approximate",
        f"{FOLDS}/approximate_index.py",
        "table[block] <= until_ms, table)",
        "table[block] < until_ms, table)",
    ),
    Mutant(
        "believed-room",
        "approximate",
        f"{FOLDS}/approximate_index.py",
        "max(0, len(table) - retention.blocks)",
        "max(0, len(table) - retention.blocks - 1)",
    ),
    Mutant(
        "believed-order",
        "approximate",
        f"{FOLDS}/approximate_index.py",
        "for block in reversed(hashes_from_bytes(hashes)):",
        "for block in hashes_from_bytes(hashes):",
    ),
    # the index
    Mutant(
        "index-unheld-counted",
        "index",
        f"{INDEX}/prefix_index.py",
        "len(column) // HASH_BYTES - len(unchanged)",
        "len(column) // HASH_BYTES",
    ),
    Mutant(
        "index-last-holder",
        "index",
        f"{INDEX}/block_changes.py",
        "        if found == bit:\n            del shard[key]\n",
        "        if found == bit:\n            absent.append(number << KEY_BITS | key)\n",
    ),
    Mutant(
        "index-run-length",
        "index",
        f"{INDEX}/block_changes.py",
        "_put(table, head, _run(bit, run[:start]) if start else None)",
        "_put(table, head, _run(bit, run) if start else None)",
    ),
    Mutant(
        "index-run-joined",
        "index",
        f"{INDEX}/block_changes.py",
        "_put(table, head, _run(sets.shared(mask | bit), run))",
        "_put(table, head, _run(sets.shared(bit), run))",
    ),
    Mutant(
        "index-run-left",
        "index",
        f"{INDEX}/block_changes.py",
        "_put(table, head, (sets.shared(mask ^ bit), run))",
        "_put(table, head, (sets.shared(mask), run))",
    ),
    Mutant(
        "index-dissolve",
        "index",
        f"{INDEX}/block_changes.py",
        "_put(table, block, sets.shared(found | living))",
        "_put(table, block, sets.shared(living))",
    ),
    Mutant(
        "index-bit-reused",
        "index",
        f"{INDEX}/worker_sets.py",
        "            taken = self.retired\n",
        "            taken = 0\n",
    ),
    Mutant("index-retired-lives", "index", f"{INDEX}/worker_sets.py", "            self.live &= ~bit\n", ""),
    Mutant(
        "index-levels-stale",
        "index",
        f"{INDEX}/prefix_index.py",
        "            self._tier_counts.setdefault(worker, {})[tier] = counts\n            self._levels = None\n",
        "            self._tier_counts.setdefault(worker, {})[tier] = counts\n",
    ),
    Mutant(
        "index-nearer-tiers",
        "index",
        f"{INDEX}/prefix_index.py",
        "for table in tables[: level + 1] if table]",
        "for table in tables[level : level + 1] if table]",
    ),
    # the galloping search
    Mutant(
        "gallop-last-block",
        "gallop",
        f"{INDEX}/galloping_search.py",
        "limit = prompt.blocks_reusable",
        "limit = prompt.blocks_reusable - 1",
    ),
    Mutant("gallop-narrow", "gallop", f"{INDEX}/galloping_search.py", "while high - low > 1:", "while high - low > 2:"),
    Mutant("gallop-other-group", "gallop", f"{INDEX}/galloping_search.py", "            gone ^= further\n", ""),
    Mutant(
        "gallop-run-place",
        "gallop",
        f"{INDEX}/galloping_search.py",
        "start = place * HASH_BYTES",
        "start = (place - 1) * HASH_BYTES",
    ),
    Mutant(
        "gallop-leap",
        "gallop",
        f"{INDEX}/galloping_search.py",
        "LEAP = 4\n",
        "LEAP = 3\n",
        equivalent="The factor decides the number of probes alone; the depths that a search finds are equal.",
    ),
    # the codec of snapshots
    Mutant(
        "snapshot-without-own-events",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "        routed=dict(sorted(part.routed.items())),\n",
        "        routed={},\n",
    ),
    Mutant(
        "snapshot-unsorted",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "        in_flight=dict(sorted(part.in_flight.items(), key=lambda item: item[0])),\n",
        "",
    ),
    Mutant(
        "snapshot-tombstones",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "        projection.ended.update(kept.ended)\n",
        "",
    ),
    Mutant("snapshot-answered", "snapshot codec", f"{FOLDS}/snapshot.py", "sorted(open_ & jobs.answered.keys())", "[]"),
    Mutant(
        "snapshot-believed-order",
        "snapshot codec",
        f"{FOLDS}/approximate_index.py",
        "hashes_to_bytes(table), hashes_to_bytes(table.values())",
        "hashes_to_bytes(sorted(table)), hashes_to_bytes(table.values())",
    ),
    Mutant(
        "snapshot-retired-bits",
        "snapshot codec",
        f"{INDEX}/index_dump.py",
        "runs[entry[0] & live].append(entry[1])",
        "runs[entry[0]].append(entry[1])",
    ),
    Mutant(
        "snapshot-run-load",
        "snapshot codec",
        f"{INDEX}/index_dump.py",
        "shards[head >> KEY_BITS][head & KEY_MASK] = (mask, column[start:end])",
        "shards[head >> KEY_BITS][head & KEY_MASK] = (mask, column[start : end - HASH_BYTES])",
    ),
    # holding requests until a worker has room
    Mutant(
        "held-shortest-first",
        "holding",
        f"{POLICY}/binding_plan.py",
        "return -min(asked.own_us), asked.held.since_ms",
        "return min(asked.own_us), asked.held.since_ms",
    ),
    Mutant(
        "held-without-age",
        "holding",
        f"{POLICY}/binding_plan.py",
        "turn = placed.own_us - AGE_M * age_us // MILLI",
        "turn = placed.own_us",
    ),
    Mutant(
        "held-pass-doubled",
        "holding",
        f"{POLICY}/binding_plan.py",
        "computes[worker] + tokens <= PASS_TOKENS",
        "computes[worker] + tokens <= 2 * PASS_TOKENS",
    ),
    Mutant(
        "held-wait-longest",
        "holding",
        f"{POLICY}/binding_plan.py",
        "sum([min(other.own_us, own_us) for other in self.placed])",
        "sum([max(other.own_us, own_us) for other in self.placed])",
    ),
    Mutant(
        "held-without-others",
        "holding",
        f"{POLICY}/binding_plan.py",
        "_replace(held=next_one.held_us)",
        "_replace(held={})",
    ),
    Mutant(
        "held-priority",
        "fairness",
        f"{POLICY}/binding_plan.py",
        "own, first = (held.request.priority, place)",
        "own, first = (-held.request.priority, place)",
    ),
    Mutant(
        "fair-charge",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "self._tags[tenant] = self.start(tenant) + cost",
        "self._tags[tenant] = self.start(tenant) + 1",
    ),
    Mutant(
        "fair-claim-on-past",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "return max(self.time, self._tags.get(tenant, 0))",
        "return self._tags.get(tenant, 0)",
    ),
    Mutant(
        "fair-crowding",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "if self.of_tenant(tenant) + 1 < len(most.waiting):",
        "if self.of_tenant(tenant) + 1 <= len(most.waiting):",
    ),
    Mutant(
        "declined-forgotten",
        "declining",
        f"{POLICY}/binding_plan.py",
        "if report.until_us > now_us and known.get(worker, 0) < max(1, report.tokens)",
        "if report.until_us > now_us and known.get(worker, 0) < 1",
    ),
    Mutant(
        "declined-for-ever",
        "declining",
        f"{POLICY}/binding_plan.py",
        "if report.until_us > now_us and known.get(worker, 0) < max(1, report.tokens)",
        "if known.get(worker, 0) < max(1, report.tokens)",
    ),
    Mutant(
        "declined-is-free",
        "declining",
        f"{POLICY}/binding_plan.py",
        "        if worker in busy_us or not fits(0, worker, computes):\n",
        "        if not fits(0, worker, computes):\n",
    ),
    # verdicts on where to compute a prompt
    Mutant(
        "verdict-at-threshold",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        "if inputs.uncached_tokens <= inputs.min_tokens:",
        "if inputs.uncached_tokens < inputs.min_tokens:",
    ),
    Mutant(
        "verdict-queue-bound",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        "if inputs.queued >= inputs.queue_max:",
        "if inputs.queued > inputs.queue_max:",
    ),
    Mutant(
        "verdict-log-away",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        '    if inputs.log_away:\n        return "log_away"\n',
        "",
    ),
    Mutant(
        "verdict-busy",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        'return "busy" if inputs.busy else REMOTE',
        "return REMOTE",
    ),
    Mutant(
        "preferred-at-equal",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        "if held <= beyond or",
        "if held < beyond or",
    ),
    Mutant("preferred-left-out", "prefill verdicts", f"{POLICY}/prefill_choice.py", " or worker in left_out:", ":"),
    Mutant(
        "preferred-order",
        "prefill verdicts",
        f"{POLICY}/prefill_choice.py",
        "rank = (-held, report.waiting,",
        "rank = (-held, -report.waiting,",
    ),
    # what-if
    Mutant(
        "what-if-regret-sign",
        "what-if",
        "replay/whatif/outcome.py",
        "return Regret(after - before, fitted",
        "return Regret(before - after, fitted",
    ),
    Mutant(
        "what-if-turns",
        "what-if",
        "replay/whatif/scenario_run.py",
        "return super().routed(model) - self._fewer",
        "return super().routed(model)",
    ),
    Mutant(
        "what-if-without",
        "what-if",
        "replay/whatif/scenario_run.py",
        "[row for row in seen.rows if row.worker not in self.without] if self.without else seen.rows",
        "seen.rows",
    ),
    Mutant(
        "what-if-delay",
        "what-if",
        "replay/whatif/whatif.py",
        "self._next.time_ms <= until_ms:",
        "self._next.time_ms < until_ms:",
    ),
)
"""All of them, by area."""
