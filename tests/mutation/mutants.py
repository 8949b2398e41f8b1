"""Mutants: bugs to be planted one at a time, each an exact replacement in one source file.

The list imports nothing of the program: a mutant is planted before the program is imported (`tests.mutation.planting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

POLICY, FOLDS, INDEX = "projections/policy", "projections/folds", "projections/index"
SUITES: dict[str, tuple[str, ...]] = {
    "costs": ("tests/projections/policy/test_decide.py", "tests/projections/policy/test_policies.py"),
    "ties": ("tests/projections/policy/test_policies.py", "tests/projections/policy/test_decide.py"),
    "candidates": ("tests/projections/policy/test_decide.py",),
    "backlog": ("tests/projections/policy/test_prefill_backlog.py",),
    "learning": ("tests/projections/policy/test_prefill_time.py",),
    "loading": ("tests/projections/policy/test_load_time.py",),
    "load reports": ("tests/actors/worker/test_load_reporter.py",),
    "chains": ("tests/projections/folds/test_kv_fold.py", "tests/projections/folds/test_state.py"),
    "folds": ("tests/projections/folds/test_kv_fold.py", "tests/projections/folds/test_routing_fold.py"),
    "jobs": ("tests/projections/folds/test_jobs_fold.py",),
    "columns": (
        "tests/projections/policy/test_candidate_columns.py",
        "tests/projections/policy/test_column_decision.py",
    ),
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
    "tiers": ("tests/projections/folds/test_kv_fold.py", "tests/projections/index/test_prefix_index.py"),
    "decision counts": ("tests/replay/verify/test_decision_counts.py",),
    "clock offsets": ("tests/replay/verify/test_clock_offsets.py",),
    "clocks": (
        "tests/streams/test_broker_clock.py",
        "tests/actors/router/test_request_scheduler.py",
        "tests/actors/router/test_skewed_clocks.py",
    ),
    "log heads": ("tests/actors/consistency/test_log_heads.py",),
    "export": ("tests/streams/archive/test_archive_export.py", "tests/streams/archive/test_archive_reader.py"),
    "redaction": (
        "tests/replay/redact/test_redaction_rules.py",
        "tests/replay/redact/test_redacted_snapshot.py",
        "tests/replay/redact/test_redaction.py",
    ),
    "judge": (
        "tests/replay/verify/test_excuses.py",
        "tests/replay/verify/test_differing_terms.py",
        "tests/replay/verify/test_rules.py",
        "tests/replay/verify/test_verify_approximate.py",
        "tests/replay/verify/test_verify_timed.py",
        "tests/replay/verify/test_verify.py",
        "tests/replay/explain/test_explain.py",
    ),
    "continued decisions": (
        "tests/projections/policy/test_view_pending.py",
        "tests/actors/membership/test_decision_bases.py",
        "tests/replay/recording/test_prompt_columns.py",
        "tests/actors/membership/test_continued_records.py",
        "tests/replay/verify/test_continued_decisions.py",
    ),
    "short records": (
        "tests/golden/test_wire_format.py",
        "tests/projections/folds/test_golden_v8.py",
        "tests/projections/folds/test_routing_fold.py",
        "tests/replay/recording/test_request_history.py",
        "tests/core/test_codec.py",
        "tests/streams/archive/test_archive_export.py",
        "tests/replay/verify/test_prefill_checks.py",
        "tests/actors/membership/test_continued_records.py",
        "tests/replay/verify/test_continued_decisions.py",
    ),
    "pools": ("tests/projections/folds/test_pools.py",),
    "simulated pools": (
        "tests/actors/engines/simulated/test_simulated_pool_files.py",
        "tests/actors/engines/simulated/test_simulated_disk_tier.py",
        "tests/replay/simulate/test_simulated_pool.py",
    ),
    "pool files": (
        "tests/actors/kv_blocks/test_block_seal.py",
        "tests/actors/kv_blocks/test_weights_digest.py",
        "tests/actors/kv_blocks/test_pool_folder.py",
        "tests/actors/kv_blocks/test_block_store.py",
    ),
    "scale readers": (
        "tests/replay/explain/test_scale_explainer.py",
        "tests/replay/whatif/test_virtual_fleet.py",
        "tests/replay/whatif/test_scale_rerun.py",
    ),
    "attached": (
        "tests/actors/engines/attached/test_assumed_cache.py",
        "tests/actors/engines/kv_events/test_sglang_events.py",
        "tests/actors/engines/attached/test_sglang_server.py",
        "tests/actors/engines/attached/test_silent_servers.py",
        "tests/actors/engines/attached/test_server_adapters.py",
    ),
    "adapters": (
        "tests/projections/folds/test_adapters.py",
        "tests/actors/engines/test_engine_adapters.py",
        "tests/actors/worker/test_adapter_placement.py",
        "tests/actors/worker/test_adapter_slots.py",
        "tests/actors/router/test_adapter_loads.py",
        "tests/api/test_adapters.py",
    ),
    "fetches": (
        "tests/projections/policy/test_prefix_fetch.py",
        "tests/actors/router/test_running_fetches.py",
        "tests/actors/kv_fetch/test_block_server.py",
    ),
    "roles": (
        "tests/projections/scaling/test_prefill_queue_model.py",
        "tests/projections/scaling/test_prefill_speed_model.py",
        "tests/projections/scaling/test_request_demand.py",
        "tests/actors/planning/test_role_planners.py",
        "tests/actors/planning/test_planner_service_roles.py",
    ),
    "planner": (
        "tests/actors/planning/test_demand_reader.py",
        "tests/actors/planning/test_scale_writer.py",
        "tests/actors/planning/test_quiet_periods.py",
        "tests/core/events/test_compact_scale.py",
        "tests/projections/scaling/test_forecast.py",
        "tests/actors/planning/test_fleet_target.py",
        "tests/actors/planning/test_kubernetes_hand.py",
        "tests/actors/planning/test_planner_service.py",
        "tests/actors/planning/test_lost_starts.py",
        "tests/api/deployment/test_fleet_scaler.py",
        "tests/projections/scaling/test_scale_fold.py",
        "tests/projections/scaling/test_recent_sizes.py",
        "tests/projections/scaling/test_measured_profile.py",
        "tests/projections/scaling/test_speed_model.py",
        "tests/projections/scaling/test_request_demand.py",
        "tests/projections/scaling/test_queue_model.py",
        "tests/projections/scaling/test_scale_decision.py",
    ),
    "several models": (
        "tests/projections/scaling/test_fleet_decision.py",
        "tests/projections/scaling/test_fleet_demand.py",
        "tests/actors/planning/test_fleet_planner.py",
        "tests/api/deployment/test_shared_devices.py",
    ),
    "scale judge": (
        "tests/projections/scaling/test_judgement.py",
        "tests/projections/scaling/test_judge_plan.py",
        "tests/actors/planning/test_judge_process.py",
        "tests/actors/planning/test_planner_judge.py",
    ),
    "pool keeper": (
        "tests/actors/kv_pool/test_pool_keeper.py",
        "tests/actors/kv_pool/test_pool_of_worker.py",
        "tests/actors/kv_pool/test_pool_lower_bound.py",
    ),
    "shared pool": (
        "tests/actors/kv_blocks/test_shared_pool_folder.py",
        "tests/actors/kv_pool/test_shared_pool.py",
    ),
    "objects": ("tests/actors/kv_objects/test_object_pool.py",),
    "disk tier": (
        "tests/actors/engines/vllm/test_sealed_disk_tier.py",
        "tests/actors/engines/vllm/test_unconfirmed_pulls.py",
    ),
    "excuses": (
        "tests/replay/recording/test_gaps.py",
        "tests/replay/verify/test_differing_terms.py",
        "tests/replay/playback/test_replica_state.py",
        "tests/replay/verify/test_fold_reports.py",
        "tests/replay/verify/test_excuses.py",
        "tests/replay/verify/test_evidence.py",
        "tests/replay/verify/test_rules.py",
        "tests/replay/verify/test_chain_proof.py",
        "tests/replay/verify/test_replaced_states.py",
        "tests/replay/verify/test_late_folds.py",
    ),
}
"""Tests of each area, the quickest first: they run where neither verify nor a digest names a mutant."""


HELD = "A decision records the waits behind held requests as an input, and the plan that gave them is not made again."
QUEUED = "A decision records the time when it was made, not the queue that its request left."
CLOCK = "A decision records the time as an input, and no clock is read again."
KEPT_HEAD = "Heads are kept beside the log, and compared with a broker's streams."
EXPORTED = "The log of the examination is a whole archive, not a range."
EXCUSED = "No log of the examination lacks messages in a way that asks for this excuse and has a wrong record there."
BOUNDED = "No number of the log comes near the bounds of columns."
SEARCHED = "Several tiers are in use in the log, so the depths of its decisions are found by the search."
OTHER_MODEL = "In every decision of the log a worker is left out for another reason."
ALIKE = (
    "No prompt of the log ends with a block that one worker computes for another request, and is computed there twice."
)
TRUE_TO_BASE = "Every decision of the log is true to the one that it continues."
WRITTEN = "The log has the decisions as they were written, and none is written again."
REUSE = (
    "No report of the worker that reuses most is missing in the log, and no record of it says a wrong greatest reuse."
)
LEARNED = "A decision records the learned time as an input, and it is not learned again."
REPORTED = "A log has the turnovers that workers report, and none is counted again."
TURNOVER = "No report with a turnover is missing or replaced in the log, and no record of it says a wrong turnover."
NO_LOADS = "Workers of the log report no load times, so no decision has any."
VERSION = "No verdict and no fold rests on the version of a record."
ONE_PARTITION = "The log has one stream of caches, so its cursors have four streams."
NO_LATER = "The log has no map of a later version."
NO_MIXTURE = "No message of the log has an unknown event beside a first token."
UNREAD = "A verification does without cursors that it cannot read in part, and the examination exports nothing."
TAKEN = '    """Prompt tokens that the engine took from its cache; CACHED_UNKNOWN if it had not said so by then."""\n'
OPENED = "            opened = self._id(), self._load(self._list().stays)\n"
NO_POOLS = "In the log each pool has one source, which never ends, and is read by its keeper alone."
SMALL_HOSTS = "In the log the host holds no more of a prompt beyond its device than a worker takes from a pool at once."
NO_SCALE = "The log has no planner."
NO_SERVERS = "The log has no attached server, and its workers report their caches."
NO_EVICTION = "No worker of the log lets an adapter go that it serves further."
NO_ADAPTERS = "A log has the adapters that workers serve; their files, and the front end's choice by name, are in none."
SIMULATED = "A log has what a simulated world did; the rules of that world are in none."
NO_FETCHES = "No worker of the log fetches blocks."
NO_DISK = "A log has what a keeper announces; the files on its disk are in none."
TOKENS_OF_ENDS = "No verdict and no fold reads the tokens of an end."


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
    unlogged: str = ""
    """The argument why no log shows it, of a mutant that the suite alone names; else empty."""


def _mutants(area: str, file: str, changes: dict[str, tuple[str, ...]]) -> Iterator[Mutant]:
    """Mutants of one file, by name: the text, the text in its place, and maybe the argument why no log shows it."""
    for name, (old, new, *unlogged) in changes.items():
        yield Mutant(name, area, file, old, new, unlogged=unlogged[0] if unlogged else "")


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
    Mutant("time-without-wait", "costs", f"{POLICY}/cost.py", "cost = wait = wait_us(worker, 0)", "cost = wait = 0"),
    Mutant(
        "time-active-weight",
        "costs",
        f"{POLICY}/cost.py",
        "cost += per_active * active_blocks // MILLI",
        "cost += per_active * active_requests // MILLI",
    ),
    Mutant("time-without-reuse", "costs", f"{POLICY}/cost.py", " + per_reuse * reuse(worker, 0) // REUSE_STEPS", ""),
    Mutant(
        "time-reuse-weight",
        "costs",
        f"{POLICY}/cost.py",
        "settings.reuse_weight_m * (per_token_m",
        "settings.active_weight_m * (per_token_m",
    ),
    Mutant(
        "time-without-delays",
        "costs",
        f"{POLICY}/cost.py",
        "            cost += per_delay * (OWN_DELAYS * (wait + own) + own * active_requests) // MILLI\n",
        "",
    ),
    Mutant("delay-of-own-once", "costs", f"{POLICY}/delay_price.py", "OWN_DELAYS = 2", "OWN_DELAYS = 1"),
    Mutant(
        "delay-never-full",
        "costs",
        f"{POLICY}/delay_price.py",
        "settings.delay_weight_m * min(reuse_max, REUSE_FULL) //",
        "settings.delay_weight_m * reuse_max //",
    ),
    Mutant(
        "first-tokens-unbounded",
        "costs",
        f"{POLICY}/cost.py",
        "cost += per_first * min(first, active_blocks) // MILLI",
        "cost += per_first * active_blocks // MILLI",
    ),
    Mutant(
        "first-tokens-without-talks",
        "costs",
        f"{POLICY}/cost.py",
        "FIRST_ACTIVE_TIMES * settings.active_weight_m * min(backlog.reuse_max, REUSE_FULL) // REUSE_FULL",
        "FIRST_ACTIVE_TIMES * settings.active_weight_m",
    ),
    Mutant(
        "delay-by-all-workers",
        "costs",
        f"{POLICY}/cost.py",
        "max((reuse.get(each.worker, 0) for each in candidates), default=0)",
        "max(reuse.values(), default=0)",
    ),
    Mutant(
        "hidden-reuse-unrecorded",
        "costs",
        f"{POLICY}/decide.py",
        "if backlog.reuse_max > max(reuse, default=0):",
        "if False:",
    ),
    Mutant(
        "reuse-undigested",
        "costs",
        f"{POLICY}/candidate_columns.py",
        "            numbers += reuse\n",
        "            pass\n",
    ),
    Mutant(
        "reuse-stays",
        "folds",
        f"{FOLDS}/load_fold.py",
        "            self.reuse.pop(worker, None)\n",
        "            pass\n",
    ),
    Mutant(
        "time-without-turnover",
        "costs",
        f"{POLICY}/cost.py",
        "            cost += TURNOVER_TIMES * own * turnover(worker, 0) // TURNOVER_STEPS\n",
        "",
    ),
    Mutant(
        "turnover-without-slack",
        "costs",
        f"{POLICY}/cost.py",
        "total // max(1, candidates) - TURNOVER_SLACK)",
        "total // max(1, candidates))",
    ),
    Mutant(
        "turnover-from-least",
        "costs",
        f"{POLICY}/cost.py",
        "return max(least, total // max(1, candidates) - TURNOVER_SLACK)",
        "return least",
    ),
    Mutant(
        "turnover-from-zero",
        "costs",
        f"{POLICY}/cost.py",
        "base = turnover_base(min(known.values(), default=0), sum(known.values()), len(known))",
        "base = 0",
    ),
    Mutant(
        "turnover-of-all-workers",
        "costs",
        f"{POLICY}/cost.py",
        "known = {each.worker: turnover.get(each.worker, 0) for each in candidates}",
        "known = {**dict.fromkeys((each.worker for each in candidates), 0), **turnover}",
    ),
    Mutant(
        "turnover-unrecorded",
        "costs",
        f"{POLICY}/decide.py",
        "host, disk, turnover if any(turnover) else None,",
        "host, disk, None,",
    ),
    Mutant(
        "turnover-undigested",
        "costs",
        f"{POLICY}/candidate_columns.py",
        "            numbers += map(backlog.turnover.get, workers, repeat(0))\n",
        "            pass\n",
    ),
    Mutant(
        "turnover-stays",
        "folds",
        f"{FOLDS}/load_fold.py",
        "            self.turnover.pop(worker, None)\n",
        "            pass\n",
    ),
    Mutant(
        "turnover-unfolded",
        "folds",
        f"{FOLDS}/load_fold.py",
        'read = (*read, "turnover", report.turnover)',
        'read = (*read, "turnover")',
    ),
    *_mutants(
        "load reports",
        "actors/worker/load_reporter.py",
        {
            "turnover-beyond-a-cache": (
                "return min(TURNOVER_STEPS, max(0, computed_tokens - sums[0][1]) * TURNOVER_STEPS // capacity_tokens)",
                "return max(0, computed_tokens - sums[0][1]) * TURNOVER_STEPS // capacity_tokens",
                REPORTED,
            ),
            "turnover-for-ever": (
                "while len(sums) > 1 and now_ms - sums[1][0] >= TURNOVER_WINDOW_MS:",
                "while len(sums) < 1:",
                REPORTED,
            ),
            "turnover-of-cached-tokens": (
                "                now, prompt_tokens - cached_tokens, load.blocks_total",
                "                now, prompt_tokens, load.blocks_total",
                REPORTED,
            ),
            "turnover-of-blocks": (
                "load.blocks_total * self._engine.info.block_size",
                "load.blocks_total",
                REPORTED,
            ),
        },
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
    Mutant(
        "tie-smaller-overlap",
        "ties",
        f"{POLICY}/policies.py",
        "-scored[at].candidate.overlap[0]",
        "scored[at].candidate.overlap[0]",
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
    Mutant(
        "temperature-table",
        "ties",
        f"{POLICY}/policies.py",
        "4112874773",
        "4112874733",
        unlogged="The weight is off by a hundred-millionth: so many decisions would have to be drawn.",
    ),
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
    *_mutants(
        "loading",
        f"{POLICY}/load_time.py",
        {
            "load-slow-counted": (
                "if self.slow[level] and overlap[level] > before:",
                "if self.slow[level] and overlap[level] < before:",
                NO_LOADS,
            ),
            "load-tier-order": ("            before = depth\n", "", NO_LOADS),
            "load-median-of-unknown": ("_median(each for each in column if each > 0)", "_median(column)", NO_LOADS),
            "load-beside-computing-alone": ("computed_m += COMPUTING_DELAYS", "computed_m += 0", NO_LOADS),
            "load-reuse-forgotten": ("reuse_max = max(reuse_max,", "reuse_max = min(reuse_max,", NO_LOADS),
        },
    ),
    Mutant(
        "learned-median",
        "learning",
        f"{POLICY}/prefill_time.py",
        "(len(numbers) - 1) // 2",
        "len(numbers) // 2",
        unlogged=LEARNED,
    ),
    Mutant(
        "learned-refit",
        "learning",
        f"{POLICY}/prefill_time.py",
        "not known.noted % REFIT_EVERY",
        "known.noted % REFIT_EVERY == 1",
        unlogged=LEARNED,
    ),
    Mutant(
        "learned-for-ever",
        "learning",
        f"{POLICY}/prefill_time.py",
        "while kept and kept[0][0] < than_us:",
        "while False:",
        unlogged=LEARNED,
    ),
    Mutant(
        "learned-form-lost",
        "learning",
        f"{POLICY}/prefill_time.py",
        "is_left = len(middles) == 1 and len(self._known) > 1",
        "is_left = False",
        unlogged=LEARNED,
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
        "            self.digest = (self.digest - part.digest) & MASK64\n        self.unknown",
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
        "if member.cache_known and event.tier in TIERS:\n            change = ",
        "if event.tier in TIERS:\n            change = ",
    ),
    Mutant(
        "removed-is-kept",
        "folds",
        f"{FOLDS}/kv_fold.py",
        "event: BlocksStored | BlocksRemoved) -> None:\n        if ",
        "event: BlocksStored | BlocksRemoved) -> None:\n        if isinstance(event, BlocksStored) and ",
    ),
    Mutant("ended-worker-serves", "folds", f"{FOLDS}/kv_fold.py", "            self.alive.pop(source, None)\n", ""),
    Mutant(
        "load-first-report",
        "folds",
        f"{FOLDS}/load_fold.py",
        "self.reports[worker] = report",
        "self.reports.setdefault(worker, report)",
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
        "            _drop(self._pending, entry.first_hash, entry)\n\n    def computed",
        "            _drop(self.prefills, entry.worker, entry)\n\n    def computed",
    ),
    Mutant(
        "shared-depth",
        "tally",
        f"{FOLDS}/in_flight.py",
        "        if hashes[at : at + HASH_BYTES] == block(middle):\n            low = middle",
        "        if hashes[at : at + HASH_BYTES] == block(middle):\n            low = high = middle",
    ),
    # decisions that continue others
    *_mutants(
        "continued decisions",
        f"{FOLDS}/in_flight.py",
        {
            "base-unproved": (
                "(base > prompt.blocks_reusable or hashes[-HASH_BYTES:] != prompt.block(base))",
                "base > prompt.blocks_reusable",
            ),
            "base-alike-too-shallow": (
                "prompt.block(depths[middle]):\n            low = middle\n",
                "prompt.block(depths[middle]):\n            low = high = middle\n",
            ),
            "base-depth-again": (
                "        place = bisect_right(depths, depth)\n",
                "        place = max(0, bisect_right(depths, depth) - 1)\n",
            ),
            "base-beyond-reuse": (
                "    if further > prompt.blocks_reusable:\n",
                "    if further > prompt.blocks:\n",
                ALIKE,
            ),
            "base-first-hash": ("(self.base_hashes or self.hashes)[:HASH_BYTES]", "self.hashes[:HASH_BYTES]"),
            "news-in-place-of-base": (
                "    return shared_depth(entry.hashes, prompt, base + 1, base)\n",
                "    return shared_depth(entry.hashes, prompt, base + 1)\n",
            ),
        },
    ),
    *_mutants(
        "continued decisions",
        f"{FOLDS}/routing_fold.py",
        {
            "base-not-folded": (
                "if isinstance(base, PromptBase) else NO_BASE",
                "if not isinstance(base, PromptBase) else NO_BASE",
            )
        },
    ),
    *_mutants(
        "continued decisions",
        "core/events/routing.py",
        {
            "base-one-short": (
                "hashes[: COLUMN_WIDTH * self.blocks] + news",
                "hashes[: COLUMN_WIDTH * (self.blocks - 1)] + news",
            )
        },
    ),
    *_mutants(
        "continued decisions",
        "core/prompt.py",
        {
            "samples-shifted": ("HASH_BYTES * (depth - before - 1) for", "HASH_BYTES * max(0, depth - before - 2) for"),
            "known-depths-few": ("for share in range(1, SHARES + 1)", "for share in range(1, SHARES)"),
        },
    ),
    *_mutants(
        "continued decisions",
        "replay/recording/prompt_columns.py",
        {
            "column-unproved": (" or column_digest(column) != base.column:", ":", TRUE_TO_BASE),
            "samples-unproved": (
                "        if sampled(column, base.blocks) != base.hashes:\n",
                "        if not base.hashes:\n",
                TRUE_TO_BASE,
            ),
            "base-not-read-yet": (
                "base.seq > read or base.decision >= (seq, place)",
                "base.decision >= (seq, place)",
                TRUE_TO_BASE,
            ),
        },
    ),
    *_mutants(
        "continued decisions",
        "actors/membership/decision_bases.py",
        {
            "base-unread": ("if found.seq <= seq and self", "if self", WRITTEN),
            "base-of-approximate": (
                "        if event.believed is not None or event.base is not UNSET or len",
                "        if event.base is not UNSET or len",
                WRITTEN,
            ),
            "base-of-another-epoch": (
                "            self._epoch = epoch\n            self.clear()\n",
                "            self._epoch = epoch\n",
                WRITTEN,
            ),
            "chain-without-end": ("return found.root >= self.root_min and now_ms", "return now_ms", WRITTEN),
            "chain-without-age": (" and now_ms - found.root_ms < self._root_age_max_ms", "", WRITTEN),
            "chain-root-forgotten": (
                "found = _Base(seq, place, base.root, event.now_ms - base.age_ms)",
                "found = _Base(seq, place, int(seq), event.now_ms)",
                WRITTEN,
            ),
            "base-beyond-its-prompt": (
                "hashes=hashes[HASH_BYTES * blocks :])",
                "hashes=hashes[HASH_BYTES * (blocks + 1) :])",
                WRITTEN,
            ),
        },
    ),
    *_mutants(
        "continued decisions",
        "actors/membership/routing_publisher.py",
        {
            "continued-unread": (
                "            event = self._continued(event, self._state.routing.version_read(self.id))\n",
                "            event = self._continued(event, CONTINUED_VERSION)\n",
                WRITTEN,
            )
        },
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
        unlogged=HELD,
    ),
    Mutant(
        "held-without-age",
        "holding",
        f"{POLICY}/binding_plan.py",
        "turn = placed.own_us - AGE_M * age_us // MILLI",
        "turn = placed.own_us",
        unlogged=HELD,
    ),
    Mutant(
        "held-pass-doubled",
        "holding",
        f"{POLICY}/binding_plan.py",
        "computes[worker] + tokens <= PASS_TOKENS",
        "computes[worker] + tokens <= 2 * PASS_TOKENS",
        unlogged=HELD,
    ),
    Mutant(
        "held-wait-longest",
        "holding",
        f"{POLICY}/binding_plan.py",
        "sum([min(other.own_us, own_us) for other in self.placed])",
        "sum([max(other.own_us, own_us) for other in self.placed])",
        unlogged=HELD,
    ),
    Mutant(
        "held-without-others",
        "holding",
        f"{POLICY}/binding_plan.py",
        "_replace(held=next_one.held_us)",
        "_replace(held={})",
        unlogged=HELD,
    ),
    Mutant(
        "held-without-room",
        "holding",
        f"{POLICY}/binding_plan.py",
        "with_room = [each for each in queue if each.has_room]",
        "with_room = queue",
        unlogged=HELD,
    ),
    Mutant(
        "held-room-forgotten",
        "holding",
        f"{POLICY}/binding_plan.py",
        "self.blocks += placed.held.blocks_needed",
        "self.blocks += 0",
        unlogged=HELD,
    ),
    Mutant(
        "held-room-of-the-sum",
        "holding",
        f"{POLICY}/worker_room.py",
        "return min(active, report.blocks_used + others * active // requests)",
        "return active",
        unlogged=HELD,
    ),
    Mutant(
        "released-with-part-of-the-wait",
        "holding",
        f"{POLICY}/binding_plan.py",
        "waits.get(worker, 0) + min(room_us, most_us) * MILLI // per_wait_m",
        "waits.get(worker, 0) + min(room_us, most_us) * WAIT_PERCENT * 10 // per_wait_m",
        unlogged=HELD,
    ),
    Mutant(
        "released-wait-delays-talks",
        "holding",
        f"{POLICY}/binding_plan.py",
        "waits.get(worker, 0) + min(room_us, most_us) * MILLI // per_wait_m",
        "waits.get(worker, 0) + min(room_us, most_us)",
        unlogged=HELD,
    ),
    Mutant(
        "released-by-long-waits",
        "holding",
        f"{POLICY}/binding_plan.py",
        "if all(rooms_us.values()):",
        "if not rooms_us:",
        unlogged=HELD,
    ),
    Mutant(
        "held-longer-than-computing",
        "holding",
        f"{POLICY}/binding_plan.py",
        "settings.hold_max_ms * MILLI if was_long else 0",
        "0",
        unlogged=HELD,
    ),
    Mutant(
        "held-room-for-shared-blocks",
        "holding",
        f"{POLICY}/binding_plan.py",
        "lacking_blocks(candidate, in_use, needed - shared) if shared else lacking",
        "lacking",
        unlogged=HELD,
    ),
    Mutant(
        "held-though-it-can-fetch",
        "fetches",
        f"{POLICY}/binding_plan.py",
        "FETCH_WAIT_PERCENT if moves_freely else WAIT_PERCENT",
        "WAIT_PERCENT",
        unlogged=NO_FETCHES,
    ),
    Mutant(
        "held-priority",
        "fairness",
        f"{POLICY}/binding_plan.py",
        "own, first = (held.request.priority, place)",
        "own, first = (-held.request.priority, place)",
        unlogged=QUEUED,
    ),
    Mutant(
        "fair-charge",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "self._tags[tenant] = self.start(tenant) + cost",
        "self._tags[tenant] = self.start(tenant) + 1",
        unlogged=QUEUED,
    ),
    Mutant(
        "fair-claim-on-past",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "return max(self.time, self._tags.get(tenant, 0))",
        "return self._tags.get(tenant, 0)",
        unlogged=QUEUED,
    ),
    Mutant(
        "fair-crowding",
        "fairness",
        f"{POLICY}/fair_queue.py",
        "if self.of_tenant(tenant) + 1 < len(most.waiting):",
        "if self.of_tenant(tenant) + 1 <= len(most.waiting):",
        unlogged=QUEUED,
    ),
    Mutant(
        "declined-forgotten",
        "declining",
        f"{POLICY}/binding_plan.py",
        "if report.until_us > now_us and known.get(worker, 0) < max(1, report.tokens)",
        "if report.until_us > now_us and known.get(worker, 0) < 1",
        unlogged=HELD,
    ),
    Mutant(
        "declined-for-ever",
        "declining",
        f"{POLICY}/binding_plan.py",
        "if report.until_us > now_us and known.get(worker, 0) < max(1, report.tokens)",
        "if known.get(worker, 0) < max(1, report.tokens)",
        unlogged=HELD,
    ),
    Mutant(
        "declined-is-free",
        "declining",
        f"{POLICY}/binding_plan.py",
        "for worker in placed.keys() - busy_us.keys()}",
        "for worker in placed}",
        unlogged=HELD,
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
    # tiers
    Mutant(
        "tier-unknown-stored",
        "tiers",
        f"{FOLDS}/kv_fold.py",
        "if member.cache_known and event.tier in TIERS:\n            change =",
        "if member.cache_known:\n            change =",
    ),
    Mutant(
        "tier-restated-device",
        "tiers",
        f"{FOLDS}/kv_fold.py",
        "if part.tier in TIERS:",
        "if part.tier == TIERS[0]:",
    ),
    Mutant(
        "tier-digest-alike",
        "tiers",
        f"{INDEX}/prefix_index.py",
        'f"{worker}/{tier}".encode()',
        'f"{worker}/".encode()',
    ),
    Mutant(
        "tier-level-empty",
        "tiers",
        f"{INDEX}/prefix_index.py",
        "if tables else levels[-1] if levels else [])",
        "if tables else [])",
    ),
    Mutant(
        "tier-on-all-levels",
        "tiers",
        f"{INDEX}/prefix_index.py",
        "columns = [map(depths.get, workers, repeat(0)) for depths in each]",
        "columns = [map(workers.get, workers, repeat(0)) for depths in each]",
    ),
    # snapshot codec
    Mutant(
        "snapshot-restatement",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "replace(member, identity=0, digest=0)",
        "replace(member, identity=0, digest=0, restated=[])",
    ),
    Mutant(
        "snapshot-local",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "        local=dict(sorted(part.local.items())),\n",
        "        local={},\n",
    ),
    Mutant(
        "snapshot-unknown-events",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "        projection.unknown_events = kept.unknown_events\n",
        "",
    ),
    Mutant(
        "snapshot-dead-letters",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "    jobs.dead_letters = kept.dead_letters\n",
        "",
    ),
    Mutant(
        "snapshot-any-form",
        "snapshot codec",
        f"{FOLDS}/snapshot.py",
        "if not SNAPSHOT_VERSION_WITHOUT_JOBS <= found.v <= SNAPSHOT_VERSION:",
        "if found.v < SNAPSHOT_VERSION_WITHOUT_JOBS:",
        unlogged="The snapshots of the examination have the newest form.",
    ),
    Mutant(
        "snapshot-believed-clock",
        "snapshot codec",
        f"{FOLDS}/approximate_index.py",
        "            found._newest_ms = max(found._newest_ms, *times)\n",
        "",
    ),
    # what-if
    Mutant(
        "what-if-ahead-of-record",
        "what-if",
        "replay/whatif/whatif.py",
        "(epoch, min(seq, self._reached(stream, until_ms)))",
        "(epoch, self._reached(stream, until_ms))",
    ),
    Mutant(
        "what-if-seed",
        "what-if",
        "replay/whatif/scenario_run.py",
        "event.now_ms, event.seed, version=version",
        "event.now_ms, 0, version=version",
    ),
    Mutant(
        "what-if-declined",
        "what-if",
        "replay/whatif/whatif.py",
        "if record is not None and record.declined:",
        "if record is None:",
    ),
    Mutant(
        "what-if-refused-tokens",
        "what-if",
        "replay/whatif/whatif.py",
        "_share(run.cached_tokens, run.tokens)",
        "_share(run.cached_tokens, self._prompt_tokens)",
    ),
    Mutant(
        "what-if-gone-worker",
        "what-if",
        "replay/whatif/outcome.py",
        "after = expected_blocks(new) if new is not None else 0",
        "after = expected_blocks(new or recorded)",
    ),
    # decision counts
    Mutant(
        "counts-repeat",
        "decision counts",
        "replay/verify/decision_counts.py",
        "        if message.n < life.n_next:\n            return  # the same message once more\n",
        "",
    ),
    Mutant(
        "counts-gap-unseen",
        "decision counts",
        "replay/verify/decision_counts.py",
        "life.has_gap = life.has_gap or message.n > life.n_next",
        "life.has_gap = life.has_gap or message.n < life.n_next",
    ),
    Mutant(
        "counts-gap-for-ever",
        "decision counts",
        "replay/verify/decision_counts.py",
        "life.stated, life.logged, life.has_gap = counts, 0, False",
        "life.stated, life.logged = counts, 0",
    ),
    Mutant(
        "counts-from-zero",
        "decision counts",
        "replay/verify/decision_counts.py",
        "begin = None if message.n else DecisionCounts(0)",
        "begin = DecisionCounts(0)",
        unlogged="Every replica of the log joins in it.",
    ),
    Mutant(
        "counts-surplus",
        "decision counts",
        "replay/verify/decision_counts.py",
        "if each.missing and not each.in_gap]",
        "if each.missing > 0 and not each.in_gap]",
    ),
    Mutant(
        "counts-gap-explains-all",
        "decision counts",
        "replay/verify/decision_counts.py",
        "if each.missing and not each.in_gap]",
        "if each.missing and not self.dropped and not each.in_gap]",
    ),
    Mutant(
        "counts-dropped-twice",
        "decision counts",
        "replay/verify/decision_counts.py",
        "- dropped - life.logged",
        "- life.logged",
    ),
    # bounds on the clocks of sources
    Mutant(
        "offset-step-at-one",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "if window.messages >= WINDOW or low > high + 1:",
        "if window.messages >= WINDOW or low > high:",
        unlogged="No times in the log contradict each other by a millisecond.",
    ),
    Mutant(
        "offset-window",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "if window.messages >= WINDOW or",
        "if",
    ),
    Mutant(
        "offset-ahead",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "sure_ms = max(self.least_ms, -self.most_ms, 0)\n        self.furthest",
        "sure_ms = max(self.least_ms, 0)\n        self.furthest",
    ),
    Mutant(
        "offset-newest",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "self.furthest = max(self.furthest, (sure_ms, self.least_ms, self.most_ms, self.seq))",
        "self.furthest = (sure_ms, self.least_ms, self.most_ms, self.seq)",
    ),
    Mutant(
        "offset-stored-before",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "window.stored_ms, window.seq = stored_ms, row.seq",
        "window.seq = row.seq",
    ),
    Mutant(
        "offset-order",
        "clock offsets",
        "replay/verify/clock_offsets.py",
        "key=lambda each: (-each.sure_ms, each.stream, each.source)",
        "key=lambda each: (each.sure_ms, each.stream, each.source)",
    ),
    # the broker's clock
    Mutant(
        "clock-drift-ignored",
        "clocks",
        "streams/broker_clock.py",
        "drift_us = (received_us - kept.at_us) * DRIFT_PPM // 1_000_000",
        "drift_us = 0",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-resolution",
        "clocks",
        "streams/broker_clock.py",
        "latest_us = broker_us + RESOLUTION_US",
        "latest_us = broker_us",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-way-back",
        "clocks",
        "streams/broker_clock.py",
        "_Sample(broker_us - received_us, latest_us - sent_us, received_us)",
        "_Sample(broker_us - received_us, latest_us - received_us, received_us)",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-step-averaged",
        "clocks",
        "streams/broker_clock.py",
        "                break\n            (low_us",
        "                continue\n            (low_us",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-refusal-unit",
        "clocks",
        "streams/broker_clock.py",
        "> OFFSET_MAX_MS * 1000:",
        "> OFFSET_MAX_MS:",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-refused-for-ever",
        "clocks",
        "streams/broker_clock.py",
        '        self.refused = ""\n        low_us',
        "        low_us",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-offset-sign",
        "clocks",
        "streams/broker_clock.py",
        "else self._clock.wall_ms() - self.wall_ms()",
        "else self.wall_ms() - self._clock.wall_ms()",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-noted-bound",
        "clocks",
        "streams/broker_clock.py",
        "abs(offset_ms) >= NOTED_MS",
        "abs(offset_ms) > NOTED_MS",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-lead-of-wall",
        "clocks",
        "streams/broker_clock.py",
        "return (self._lead_us + self.monotonic_ns() // 1000) // 1000",
        "return self._clock.wall_ms()",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-correction-ignored",
        "clocks",
        "actors/router/request_scheduler.py",
        "        self._wall_offset_ms = event.wall_offset_ms\n        if",
        "        if",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-goes-back",
        "clocks",
        "actors/router/request_scheduler.py",
        "if before_ms - self._wall_ms <= CLOCK_STANDS_MS:",
        "if before_ms - self._wall_ms > CLOCK_STANDS_MS:",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-stands-for-ever",
        "clocks",
        "actors/router/request_scheduler.py",
        "if before_ms - self._wall_ms <= CLOCK_STANDS_MS:",
        "if before_ms:",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-router-uncorrected",
        "clocks",
        "actors/router/router.py",
        "ClockCorrected(self._clock.wall_offset_ms)",
        "ClockCorrected(self._clock.wall_offset_ms + self._clock.offset_ms)",
        unlogged=CLOCK,
    ),
    Mutant(
        "clock-offset-unreported",
        "clocks",
        "actors/router/background_tasks.py",
        "if offset_ms and isinstance(event, ReplicaReported):",
        "if not offset_ms and isinstance(event, ReplicaReported):",
        unlogged=CLOCK,
    ),
    # heads of the log
    Mutant(
        "heads-first-is-purged",
        "log heads",
        "actors/consistency/log_heads.py",
        "if state.first_seq > head.seq:",
        "if state.first_seq >= head.seq:",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-retention-unit",
        "log heads",
        "actors/consistency/log_heads.py",
        "age_ms > RETAINED_SHARE * state.age_max_s * 1000",
        "age_ms > RETAINED_SHARE * state.age_max_s",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-another-message",
        "log heads",
        "actors/consistency/log_heads.py",
        "digest(record.payload, chain_key).hex() != head.head:",
        "not head.head:",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-unconfirmed",
        "log heads",
        "actors/consistency/log_heads.py",
        "lost = {name: loss for name, loss in again.items() if lost[name].kind == loss.kind}",
        "lost = {**lost, **again}",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-of-lost-streams",
        "log heads",
        "actors/consistency/log_heads.py",
        "for name, head in kept.streams.items() if name not in lost}",
        "for name, head in kept.streams.items()}",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-of-wrong-fold",
        "log heads",
        "actors/consistency/log_heads.py",
        "if name not in wrong and (before is None",
        "if (before is None",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-go-back",
        "log heads",
        "actors/consistency/log_heads.py",
        "or before.seq <= head.seq):",
        "or before.seq >= head.seq):",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-told-again",
        "log heads",
        "actors/consistency/log_heads.py",
        "                self._known.add(loss.key)\n",
        "",
        unlogged=KEPT_HEAD,
    ),
    Mutant(
        "heads-oldest-kept",
        "log heads",
        "actors/consistency/log_heads.py",
        "if loss.key not in known))[-LOSSES_KEPT:]",
        "if loss.key not in known))[:LOSSES_KEPT]",
        unlogged=KEPT_HEAD,
    ),
    # exports
    Mutant(
        "export-start-inclusive",
        "export",
        "streams/archive/archive_export.py",
        "start.get(stream, StreamSeq(1)) - 1, reach",
        "start.get(stream, StreamSeq(1)), reach",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-reads-ahead",
        "export",
        "streams/archive/archive_export.py",
        "reach.lows.get(stream, at.seq))",
        "at.seq)",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-end-of-reads",
        "export",
        "streams/archive/archive_export.py",
        "reach.highs.get(stream, 0) + 1))",
        "reach.highs.get(stream, 0)))",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-oldest-snapshot",
        "export",
        "streams/archive/archive_export.py",
        "for manifest in reversed(manifests):",
        "for manifest in manifests:",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-incomplete-start",
        "export",
        "streams/archive/archive_export.py",
        "(manifest for manifest in usable if not manifest.why_no_start)",
        "(manifest for manifest in usable)",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-unproved-snapshot",
        "export",
        "streams/archive/archive_export.py",
        "if record is None or digest(record.payload, chain_key).hex() != at.head:",
        "if record is None:",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-remade-stream",
        "export",
        "streams/archive/archive_export.py",
        "if (await log.state(stream)).epoch != states[stream].epoch:",
        "if (await log.state(stream)).epoch < states[stream].epoch:",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-retention-unsaid",
        "export",
        "streams/archive/archive_export.py",
        "            writer.retained(stream, first)  # retention was faster than we\n",
        "            pass\n",
        unlogged=EXPORTED,
    ),
    Mutant(
        "export-head-of-another",
        "export",
        "streams/archive/archive_export.py",
        "if missing.get(message.source) == message.n - 1:",
        "if message.source in missing:",
        unlogged=EXPORTED,
    ),
    Mutant(
        "archive-head-of-repeat",
        "export",
        "streams/archive/archive_writer.py",
        "head.of(whose) and head.n > opened.numbers.get(head.source, -1)",
        "head.of(whose)",
        unlogged=EXPORTED,
    ),
    # redaction
    Mutant(
        "redact-tenant",
        "redaction",
        "replay/redact/redaction_rules.py",
        'return replace(event, tenant=names.of("tenant", event.tenant), prefer=names.id(event.prefer), fetch=fetch)',
        "return replace(event, prefer=names.id(event.prefer), fetch=fetch)",
    ),
    Mutant(
        "redact-reason-of-end",
        "redaction",
        "replay/redact/redaction_rules.py",
        "by=names.id(event.by), reason=names.text(event.reason))",
        "by=names.id(event.by))",
    ),
    Mutant(
        "redact-kv-head",
        "redaction",
        "replay/redact/redaction_rules.py",
        'return replace(event, kv_head=b"")',
        "return event",
    ),
    Mutant(
        "redact-digest-of-prompt",
        "redaction",
        "replay/redact/redaction_rules.py",
        "replace(event, digest=names.text(event.digest), prefer",
        "replace(event, prefer",
    ),
    Mutant(
        "redact-settings-text",
        "redaction",
        "replay/redact/pseudonyms.py",
        "isinstance(value, int | float) or value in POLICIES else TEXT",
        "value else TEXT",
    ),
    Mutant(
        "redact-one-pseudonym",
        "redaction",
        "replay/redact/pseudonyms.py",
        'f"{kind}-{len(given) + 1}"',
        'f"{kind}-1"',
    ),
    Mutant(
        "redact-gap-healed",
        "redaction",
        "replay/redact/resealing.py",
        "message.n == end.n + 1 and (not end.old or message.prev == end.old):",
        "message.n == end.n + 1:",
    ),
    Mutant(
        "redact-repeat-forked",
        "redaction",
        "replay/redact/resealing.py",
        "            return end.prev_new  # stored twice, and the same again\n",
        "            pass\n",
    ),
    Mutant(
        "redact-snapshot-chain",
        "redaction",
        "replay/redact/redacted_snapshot.py",
        "            chain.head = end.new\n",
        "            pass\n",
        unlogged="The log of the examination has no snapshot in it.",
    ),
    Mutant(
        "redact-snapshot-settings",
        "redaction",
        "replay/redact/redacted_snapshot.py",
        "        part.settings = names.settings(part.settings)\n",
        "",
        unlogged="The log of the examination has no snapshot in it.",
    ),
    Mutant(
        "redact-snapshot-jobs",
        "redaction",
        "replay/redact/redacted_snapshot.py",
        "names.id(job): names.id(requester) for",
        "names.id(job): requester for",
        unlogged="The log of the examination has no snapshot in it.",
    ),
    # excuses of verify
    Mutant(
        "excuse-gap-to-come",
        "excuses",
        "replay/recording/gaps.py",
        "            and gap.after <= cursor[gap.stream][1]\n",
        "",
        unlogged=EXCUSED,
    ),
    Mutant(
        "excuse-gap-agreed",
        "excuses",
        "replay/recording/gaps.py",
        "            and agreed.get(gap.stream, 0) < gap.sure\n",
        "",
        unlogged=EXCUSED,
    ),
    Mutant(
        "excuse-replaced-read",
        "excuses",
        "replay/recording/gaps.py",
        " or read.get(each.stream, 0) >= each.noticed:",
        ":",
    ),
    Mutant(
        "excuse-replaced-before",
        "excuses",
        "replay/recording/gaps.py",
        " or at[1] < each.first or",
        " or",
    ),
    Mutant(
        "excuse-gap-noticed",
        "excuses",
        "replay/recording/gaps.py",
        "cursor[gap.stream][1] < gap.noticed)",
        "cursor[gap.stream][1] <= gap.noticed)",
    ),
    Mutant(
        "excuse-gap-of-others",
        "excuses",
        "replay/verify/evidence.py",
        "if source not in of_others:",
        "if source not in ():",
    ),
    Mutant(
        "excuse-another-fold",
        "excuses",
        "replay/verify/evidence.py",
        "if point.complete and point.digest == each.digest:",
        "if point.complete:",
        unlogged=EXCUSED,
    ),
    Mutant(
        "excuse-newer-rules",
        "excuses",
        "replay/verify/evidence.py",
        '    if not is_newer_program(program):\n        return ""\n',
        "",
        unlogged=EXCUSED,
    ),
    Mutant(
        "excuse-own-witness",
        "excuses",
        "replay/verify/evidence.py",
        "(reported or replica != at.replica)",
        "at.replica",
        unlogged=EXCUSED,
    ),
    Mutant(
        "excuse-other-model",
        "excuses",
        "replay/verify/evidence.py",
        "if member.joined is not None and member.joined.model != model\n    }",
        "if member.joined is not None and not member.joined.model\n    }",
    ),
    Mutant(
        "excuse-recorded-as-unknown",
        "excuses",
        "replay/verify/evidence.py",
        "strict=False) if not at}",
        "strict=False) if at}",
    ),
    Mutant(
        "excuse-never-lifted",
        "excuses",
        "replay/verify/evidence.py",
        "if any(each.reason in LIFTED for each in found):",
        "if not found:",
    ),
    Mutant(
        "excuse-unread-head",
        "excuses",
        "replay/verify/evidence.py",
        "if point is not None and point.head == each.head:",
        "if point is not None:",
    ),
    Mutant(
        "excuse-of-later-report",
        "excuses",
        "replay/verify/evidence.py",
        "if each.at < seq:",
        "if each.at != seq:",
    ),
    Mutant(
        "excuse-fold-of-gap",
        "excuses",
        "replay/playback/fold_reports.py",
        "or any(gaps.at({report.stream: (point.epoch, report.seq)})):",
        "or gaps.all:",
    ),
    Mutant(
        "excuse-own-missing",
        "excuses",
        "replay/playback/replica_state.py",
        "                self.unverifiable.pop(UNKNOWN, None)\n",
        "",
        unlogged=EXCUSED,
    ),
    # decisions by columns
    *_mutants(
        "columns",
        f"{POLICY}/column_decision.py",
        {
            "columns-other-rules": (
                " and RULES[DECIDE_VERSION] is RULES_BY_COLUMNS",
                "",
                "The columns follow the newest rules of the program.",
            ),
            "columns-own-load": ("self.requests.item(row) + requests", "self.requests.item(row)"),
            "columns-load-shared": (
                "table.waiting.copy()",
                "table.waiting",
                "The examination reads a decision before the next event.",
            ),
            "columns-own-bound": ("if not -NUMBER_MAX <= min(numbers) <=", "if not min(numbers) <=", BOUNDED),
            "columns-shared-negative": (
                "np.maximum(self.pending_column() - self.levels[-1], 0)",
                "self.pending_column() - self.levels[-1]",
            ),
            "columns-shared-level": (
                "np.maximum(self.pending_column() - self.levels[-1], 0)",
                "np.maximum(self.pending_column() - self.levels[0], 0)",
            ),
            "columns-pending-undigested": (
                "*levels, prefixes.pending_column(), load",
                "*levels, np.zeros(len(table.known), np.int64), load",
            ),
            "columns-waits-undigested": (
                "        columns.append(seen.waits.column)\n",
                "        columns.append(np.zeros_like(seen.waits.column))\n",
            ),
            "columns-capacity-of-all": (
                "table.ids[rows].tolist()), table.capacities[rows]",
                "table.ids[rows].tolist()), table.capacities",
            ),
            "columns-level": ("column[rows] = [overlap[level] for", "column[rows] = [overlap[0] for"),
            "columns-two-reasons": (" is not None and left[row]]", " is not None]"),
            "columns-local-reasons": (" or any(map(view.local.get, EXCLUSION_REASONS))):", "):", OTHER_MODEL),
            "columns-full-at-bound": (
                "full = load.waiting.max() >= settings",
                "full = load.waiting.max() > settings",
                OTHER_MODEL,
            ),
            "columns-overloaded-at-bound": ('("overloaded", load.waiting >= ', '("overloaded", load.waiting > '),
            "columns-draining-is-left": ("            left &= ~flags\n", ""),
            "columns-wait-without-row": ("if len(folded) != table.prefilling or not own", "if not own"),
            "columns-own-wait": ("in (*own, *view.pending_events.computed_on)", "in view.pending_events.computed_on"),
            "columns-computed-wait": ("in (*own, *view.pending_events.computed_on)", "in own"),
            "columns-computed-counts": (" if each[1:3] not in computed]", "]"),
            "columns-crowded": ("for row in (*table.crowded, *one_by_one):", "for row in one_by_one:"),
            "columns-held": (
                "            column[rows[worker]] = wait\n",
                "            pass\n",
            ),
            "columns-begins-later": ("np.minimum(table.begins_us[place], now_us)", "table.begins_us[place]"),
            "columns-outstanding": ("np.where(table.outstanding > place,", "np.where(table.outstanding >= place,"),
            "columns-wait-negative": ("return np.maximum(free_us - now_us, 0)", "return free_us - now_us"),
            "columns-slack": ("SLACK_M * (base_us + per_token_m * table", "MILLI * (base_us + per_token_m * table"),
            "columns-queued-shared": ("            queued_m -= shared * MILLI\n", ""),
            "columns-blocks-shared": ("            blocks = blocks - shared\n", "            pass\n"),
            "columns-stale": (
                "credit_m[row] = credit_m.item(row) * settings",
                "credit_m[row] = credit_m.item(0) * settings",
            ),
            "columns-credit-negative": (
                "np.maximum(needed_m - credit_m, 0)",
                "needed_m - credit_m",
                "No credit of the log is more than the blocks of the prompt.",
            ),
            "columns-queued-negative": ("prefill_m += np.maximum(queued_m, 0)", "prefill_m += queued_m"),
            "columns-without-hold": ("(blocks + prompt.blocks_to_hold)", "blocks"),
            "columns-credit-by-level": ("each_m[1:], strict", "each_m, strict"),
            "columns-session-bound": ("(waits.column - settings.session_wait_max_ms * MILLI, 0)", "(waits.column, 0)"),
            "columns-rounds-down": (
                "per_token_m * -(-prefill_m * size // MILLI)",
                "per_token_m * (prefill_m * size // MILLI)",
            ),
            "columns-requests-bound": (
                "max(settings.own_request_weight_m, TURNOVER_TIMES) * NUMBER_MAX)",
                "max(settings.own_request_weight_m, TURNOVER_TIMES))",
                BOUNDED,
            ),
            "columns-active-bound": ("per_active * (NUMBER_MAX + TOKENS_MAX)", "per_active * TOKENS_MAX", BOUNDED),
            "columns-active-shared": (
                "cost += per_active * blocks // MILLI",
                "cost += per_active * load.blocks // MILLI",
            ),
            "columns-wide": ("if table.wide or not _is_bounded", "if not _is_bounded", BOUNDED),
            "columns-long-prompt": ("prompt.tokens <= TOKENS_MAX and ", "", BOUNDED),
            "columns-heavy": (" and weights_m <= WEIGHT_M_MAX", "", BOUNDED),
            "columns-turn": ("rows.item(turn % len(rows))", "rows.item((turn + 1) % len(rows))"),
            "columns-two": ("of_two(costs.tolist(), seed)", "of_two(sorted(costs.tolist()), seed)"),
            "columns-drawn": ("draw_by_temperature(costs.tolist(),", "draw_by_temperature(sorted(costs.tolist()),"),
            "columns-margin": ("(self._costs <= cost).nonzero()", "(self._costs < cost).nonzero()"),
            "columns-margin-first": ("near.item(int(self._ties(near).argmin()))", "near.item(0)"),
            "columns-order-of-others": ("order[order != self._chosen]", "order"),
            "columns-tie-of-last": ("        flags[:-1] |= equal\n", ""),
            "columns-tie-by-cost": (
                "self._ties(rows), depth, costs[tied])",
                "self._ties(rows), depth)",
            ),
            "columns-tie-smaller-overlap": ("is None else -self._overlap[rows]", "is None else self._overlap[rows]"),
            "columns-without-delays": ("    if per_delay:\n", "    if False:\n"),
            "columns-delay-by-all-workers": ("load.reuse[kept.rows].max()", "load.reuse.max()"),
            "columns-without-first-tokens": (
                "        cost += per_first * np.minimum(blocks, FIRST_ACTIVE_TOKENS // size) // MILLI\n",
                "",
            ),
            "columns-without-reuse": (" + per_reuse * load.reuse // REUSE_STEPS", ""),
            "columns-without-turnover": (
                "    if turnover is not None:\n        cost += TURNOVER_TIMES * own * turnover // TURNOVER_STEPS\n",
                "",
            ),
            "columns-turnover-forgotten": ("if seen.max() <= base:", "if True:"),
            "columns-turnover-of-all-workers": (
                "turnover_base(seen.min().item(), seen.sum().item(), len(seen))",
                "turnover_base(load.turnover.min().item(), load.turnover.sum().item(), len(load.turnover))",
            ),
            "columns-turnover-undigested": ("            columns.append(seen.turnover)\n", "            pass\n"),
            "columns-tie-bytes": ('">u8").astype', '"<u8").astype'),
        },
    ),
    *_mutants(
        "holding",
        f"{POLICY}/column_decision.py",
        {
            "columns-room-of-others": (
                "            blocks[table.rows[worker]] += own.blocks\n",
                "            pass\n",
                HELD,
            ),
            "columns-room-of-larger": (
                "(blocks > most - needed) & (needed <= most)",
                "(blocks > most - needed) & (needed < most)",
                HELD,
            ),
        },
    ),
    *_mutants(
        "columns",
        f"{FOLDS}/worker_table.py",
        {
            "table-of-another-fold": (" or loads is not self._loads or", " or", "No stream of the log begins again."),
            "table-load-reported": ("chain(in_flight.changed, loads.changed)", "in_flight.changed"),
            "table-in-flight": ("chain(in_flight.changed, loads.changed)", "loads.changed"),
            "table-notes-stay": ("        loads.changed.clear()\n", ""),
            "table-eligible-stays": (
                "        self._sets = None\n        self._eligible.clear()\n",
                "        self._sets = None\n",
            ),
            "table-eligible-unbounded": (
                "if len(self._eligible) >= ELIGIBLE_MAX:",
                "if len(self._eligible) < 0:",
                "The log has few models.",
            ),
            "table-other-block-size": ('setdefault("other_block_size", [])', 'setdefault("other_model", [])'),
            "table-places-stay": (" or index.sets.changes != self._sets_changes:", ":", SEARCHED),
            "table-places-of-others": (
                "        self._sets = None\n        self._eligible",
                "        self._eligible",
                SEARCHED,
            ),
            "table-without-bit": (
                "in (bits := index.sets.bits) else -1 for",
                "in (bits := index.sets.bits) else 0 for",
                SEARCHED,
            ),
            "table-wide-at-bound": ("max(numbers) > NUMBER_MAX:", "max(numbers) >= NUMBER_MAX:", BOUNDED),
            "table-wide-stays": ("        self.wide.pop(row, None)\n", "", BOUNDED),
            "table-draining": (
                "self.draining[row], self.reuse[row] = report.draining, loads",
                "self.reuse[row] = loads",
            ),
            "table-reuse": ("report.draining, loads.reuse.get(worker, 0)", "report.draining, 0"),
            "table-turnover": ("report.waiting, report.turnover\n", "report.waiting, 0\n"),
            "table-capacity": (
                "            self.capacities[row] = joined.capacity_blocks & MASK64\n",
                "            self.capacities[row] = min(joined.capacity_blocks, 1000)\n",
                "No cache of the log has more than 1 000 blocks.",
            ),
            "table-prefill-ends": (" or self.outstanding.item(row):", ":"),
            "table-prefill-order": ("sorted(prefills.values()) if prefills", "[*prefills.values()] if prefills"),
            "table-prefilling": ("bool(prefills) - bool(self.outstanding.item(row))", "bool(prefills)"),
            "table-crowded-beyond": (
                "if len(prefills) > OUTSTANDING_COLUMNS:",
                "if len(prefills) > OUTSTANDING_COLUMNS + 1:",
            ),
        },
    ),
    *_mutants(
        "columns",
        f"{INDEX}/depth_column.py",
        {
            "depths-overflow": ("<= MATRIX_BLOCKS_MAX:", "<= MATRIX_BLOCKS_MAX + 1:", SEARCHED),
            "depths-last-place": ("count = min(size - 1, len(sums))", "count = min(size, len(sums))", SEARCHED),
            "depths-last-place-searched": ("kept = places < size - 1", "kept = places < size", SEARCHED),
            "depths-last-block": (
                "prompt.hashes()[: prompt.blocks_reusable * HASH_BYTES]",
                "prompt.hashes()",
                SEARCHED,
            ),
            "depths-retired": (
                "if live == -1 else [mask & live for mask in masks]",
                "if live else [mask & live for mask in masks]",
                SEARCHED,
            ),
            "depths-of-run": (
                " and run[start : start + HASH_BYTES] == hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]:",
                ":",
                SEARCHED,
            ),
            "depths-in-holes": (
                "if (packed[1:] & ~packed[:-1]).any():",
                "if (packed[:-1] & ~packed[1:]).all():",
                SEARCHED,
            ),
            "depths-of-places": (
                "np.repeat([depth for depth, _ in groups]",
                "np.repeat([depth + 1 for depth, _ in groups]",
                SEARCHED,
            ),
        },
    ),
    # the judge
    *_mutants(
        "judge",
        "replay/verify/judge.py",
        {
            "judge-digest-alone": ("        and recorded.worker == recomputed.worker\n", ""),
            "judge-without-cursor": ("        and recorded.cursor == recomputed.cursor\n", ""),
            "judge-without-columns": ("        and recorded.columns == recomputed.columns\n", ""),
            "judge-without-exclusions": ("        and recorded.excluded == recomputed.excluded\n", ""),
            "judge-without-blocks": ("        and recorded.blocks == recomputed.blocks\n", ""),
            "judge-without-total": ("        and recorded.candidates_total == recomputed.candidates_total\n", ""),
            "judge-without-prefill": ("        and recorded.prefill_tokens == recomputed.prefill_tokens\n", ""),
            "judge-without-prediction": (
                "        and recorded.predicted_cached_tokens == recomputed.predicted_cached_tokens\n",
                "",
            ),
            "judge-without-policy": ("        and recorded.policy == recomputed.policy\n", ""),
            "judge-without-prefer": ("        and recorded.prefer == recomputed.prefer\n", ""),
            "judge-without-prefer-tokens": ("        and recorded.prefer_tokens == recomputed.prefer_tokens\n", ""),
            "judge-without-wait": ("        and recorded.wait_us == recomputed.wait_us\n", ""),
            "judge-without-belief": ("        and recorded.believed == recomputed.believed\n", ""),
            "judge-candidates-in-order": ("(whole and set(ours) != set(theirs))", "(whole and ours != theirs)"),
            "judge-candidates-shown": ("(whole and set(ours) != set(theirs))", "set(ours) != set(theirs)"),
            "judge-other-places": ("[(worker, place, places[worker]) for", "[(worker, place, place) for"),
            "judge-cost-unseen": ('for term in (*BEFORE_COST, "cost"):', "for term in BEFORE_COST:"),
            "judge-cost-first": ('for term in (*BEFORE_COST, "cost"):', 'for term in ("cost", *BEFORE_COST):'),
            "judge-reuse-max-unseen": (
                "            if most != most_now:\n",
                "            if False:\n",
                REUSE,
            ),
            "judge-column-shorter": ("if one < len(before) and other < len(now) and", "if one + 1 < len(before) and"),
            "judge-order-unseen": ("    if ours != theirs:\n", "    if set(ours) != set(theirs):\n"),
            "judge-cursor-last": ("terms.insert(0, Term(", "terms.append(Term("),
            "judge-refusal-served": (
                "    if decision.ranked:\n        yield",
                "    if not decision.ranked:\n        yield",
            ),
            "judge-refusal-status": ("(503, 500) if event.attempt else (503,)", "(503, 500)"),
            "judge-refusal-attempt": ("(503, 500) if event.attempt else (503,)", "(503,)"),
            "judge-refusal-reason": ("return event.reason == rejection_reason(event.excluded) and", "return"),
            "judge-refusal-rules": (
                "    if at.event.decide_version not in RULES:\n        return [Remade",
                "    if at.event.decide_version > max(RULES):\n        return [Remade",
            ),
            "judge-refusal-sizes": ("return [*sizes, max(", "return [*sizes[:0], max("),
            "judge-refusal-another-size": ("max((each.block_size for each in joined), default=0) + 1]", "*sizes[:1]]"),
            "judge-refusal-first": (
                "next(([again] for again in found if not again.terms), found)",
                "next(([again] for again in found), found)",
            ),
            "judge-refusal-excused": (
                "if excuse := next((each for each in terms if isinstance(each, Unverifiable)), None):",
                "if isinstance(excuse := terms[0], Unverifiable):",
            ),
            "judge-rules-pass": (
                "        return Remade([rules_term(event.decide_version)])\n    if at.fault",
                "        return Remade([])\n    if at.fault",
            ),
            "judge-hidden-passes": ('Remade(terms or [Term("digest"', 'Remade(terms and [Term("digest"'),
            "judge-alone-unproved": (
                "    if proved.all == gaps.all and not proved.replaced:\n",
                "    if proved.all or not proved.replaced:\n",
            ),
            "judge-replaced-recomputed": (
                '            routed, digest = None, ""  # made',
                "            routed = None  # made",
            ),
            "judge-cause-in-epoch": ("if stream in replaced or (here == epoch", "if (here == epoch"),
            "judge-cause-at-end": ("stream != JOBS and seq > source.ends", "stream != JOBS and seq >= source.ends"),
        },
    ),
    # terms that missing messages excuse
    *_mutants(
        "excuses",
        "replay/verify/differing_terms.py",
        {
            "term-rests-on-all": ('"overlap": _CACHED,', '"overlap": (Input.CACHE, Input.IN_FLIGHT),'),
            "term-pending-cached": ('"pending": (Input.IN_FLIGHT,)', '"pending": (Input.IN_FLIGHT, Input.CACHE)'),
            "term-waiting": ('"waiting": (Input.REPORT,)', '"waiting": (Input.REPORT, Input.CACHE)'),
            "term-cost": ('"cost": (Input.SETTINGS,)', '"cost": (Input.SETTINGS, Input.IN_FLIGHT)'),
            "term-policy": ('"policy": (Input.SETTINGS,)', '"policy": (Input.SETTINGS, Input.OWN)'),
            "term-excused-first": (
                "        if not excuses.hold_for(term):\n            return term\n",
                "        if not excuses.hold_for(term):\n            break\n",
            ),
            "term-reasons-reversed": ("return min(excuses.used,", "return max(excuses.used,"),
            "term-cost-of-any": (
                "return term.worker in self._workers or self._note(term) or",
                "return bool(self._workers) or self._note(term) or",
            ),
            "term-cost-of-other-reuse": (
                "(self._costs_by_reuse.get(WorkerId(term.worker)) == term.recorded)",
                "(1)",
                REUSE,
            ),
            "term-cost-of-log-reuse": ("_replace(reuse_max=reuse_max(at.event))", "_replace()", REUSE),
            "term-reuse-hidden": (
                "if not self._is_other_reuse and self._shows_all:",
                "if False:",
                REUSE,
            ),
            "term-reuse-replaced": (
                "explains_reuse_max(term.recorded, hidden)",
                "explains_reuse_max(term.recomputed, hidden)",
                REUSE,
            ),
            "term-reuse-of-any-report": (
                "_note(term._replace(worker=worker), Input.REPORT)",
                "_note(term, Input.CACHE)",
                REUSE,
            ),
            "term-reuse-of-all": ("= term.recorded == max(shown, default=0)", "= True", REUSE),
            "term-turnover-of-own-report": (
                '        if self._note(term._replace(worker="")):\n            return True\n        by =',
                "        by =",
                TURNOVER,
            ),
            "term-turnover-replaced": ("self._replaced.explains_turnover() if", "None if", TURNOVER),
            "term-choice-contradicts": ("(self._may_follow() and self._follows_from_costs())", "self._may_follow()"),
            "term-choice-unexcused": (
                "(self._may_follow() and self._follows_from_costs())",
                "self._follows_from_costs()",
            ),
            "term-blocks-follow": (
                '                holds = self._chosen_differs() or self._is_other_fetch\n            case "believed":',
                '                holds = bool(self.used)\n            case "believed":',
            ),
            "term-digest-alone": ("holds = bool(self.used) or self._hold_for_hidden(term)", "holds = bool(self.used)"),
            "term-approximate-cached": (
                'self._approximate and term.term in ("overlap", "overlap_all")',
                'self._approximate and term.term == "overlap"',
            ),
            "term-of-another-worker": (
                "not worker or it not in OF_WORKER or self._concerns(each, worker, it))",
                "not worker or it not in OF_WORKER or each.stream)",
            ),
            "term-own-of-others": (
                "        if not each.concerns(replica):\n            found.discard(Input.OWN)\n",
                "",
            ),
            "term-settings-of-gaps": (
                "return found - {Input.SETTINGS} if known or Input.OWN not in found else found",
                "return found - {Input.SETTINGS} if known else found",
            ),
        },
    ),
    # states of a history that was replaced
    *_mutants(
        "excuses",
        "replay/verify/replaced_states.py",
        {
            "replaced-by-log": (
                "        if fits(self._at.view.state, worker):\n            return None  # the log's",
                "        if False:\n            return None  # the log's",
                EXCUSED,
            ),
            "replaced-any-digest": (
                "return decision is not None and decision.digest == at.event.digest",
                "return decision is not None",
                EXCUSED,
            ),
            "replaced-unknown-in-full": (
                "message.n > n_next and n_next - n_first < where.messages",
                "message.n > n_next",
                EXCUSED,
            ),
            "replaced-sent-again-fewer": ("if where.is_whole else 0", "if False else 0", EXCUSED),
        },
    ),
    *_mutants(
        "excuses",
        "replay/playback/late_folds.py",
        {
            "late-other-epoch": ("self._source.epochs.get(stream) == epoch and ", "", EXCUSED),
            "late-behind-begin": ("min(begin - 1, seq)", "min(begin, seq)", EXCUSED),
        },
    ),
    *_mutants(
        "excuses",
        "replay/verify/evidence.py",
        {
            "late-report-before": ("reports[max(0, place - 1) : place + 1]", "reports[place : place + 1]", EXCUSED),
            "late-report-behind": (
                "reports[max(0, place - 1) : place + 1]",
                "reports[max(0, place - 1) : place]",
                EXCUSED,
            ),
        },
    ),
    *_mutants(
        "excuses",
        "replay/verify/chain_proof.py",
        {
            "acknowledged-equal": ("if n > gap.n_from:", "if n >= gap.n_from:", EXCUSED),
        },
    ),
    *_mutants(
        "excuses",
        "replay/playback/fold_reports.py",
        {"late-begin-behind-place": ("begin is None or begin[1] > report.seq or not", "begin is None or not", EXCUSED)},
    ),
    # short records
    *_mutants(
        "short records",
        "core/events/compact_decision.py",
        {
            "short-blocks-as-requests": (
                "            self.active_blocks,\n            self.active_requests,\n",
                "            self.active_requests,\n            self.active_blocks,\n",
            ),
            "short-tiers-forgotten": ("overlap if self.overlap_all is None else self.overlap_all", "overlap"),
            "short-known-unknown": ("ones if self.known is None", "zeros if self.known is None"),
            "short-cursor-turned": (
                "        jobs, kv, load, routing = value\n",
                "        kv, jobs, load, routing = value\n",
            ),
            "short-base-none": (
                "    values[last:] = [UNSET if each is None else each for each in values[last:]]\n",
                "",
            ),
            "short-read-as-before": (
                "RequestRouted(*_with_unset(values), v=SHORT_VERSION)",
                "RequestRouted(*_with_unset(values), v=COMPACT_VERSION)",
                VERSION,
            ),
            "short-cursor-written-otherwise": (
                "usual = [cursor[JOBS], cursor[_KV], cursor[LOAD], cursor[ROUTING]]",
                "usual = [cursor[JOBS], cursor[_KV], cursor[ROUTING], cursor[LOAD]]",
                WRITTEN,
            ),
            "short-partitions-left-out": ("    if len(usual) == len(cursor):\n", "    if usual:\n", WRITTEN),
            "short-names-unchecked": (
                "return [*cursor.values()] if (*cursor,) == stream_names(len(cursor)) else cursor",
                "return [*cursor.values()]",
                WRITTEN,
            ),
            "short-pending-of-the-best": (
                "None if pending == zeros else pending",
                "None if pending[:1] == zeros[:1] else pending",
                WRITTEN,
            ),
            "short-known-of-the-best": (
                "None if known == ones else known",
                "None if known[:1] == ones[:1] else known",
                WRITTEN,
            ),
            "short-waits-of-zero": (
                "    if columns.wait_us is not None:\n",
                "    if columns.wait_us is not None and any(columns.wait_us):\n",
                WRITTEN,
            ),
            "stream-names-cut-late": (
                "range(1, number - 3))][:number]))",
                "range(1, number - 3))])[:number])",
                ONE_PARTITION,
            ),
            "partial-values-one-short": (
                "max(map([*VALUES].index, names)) + 1",
                "max(map([*VALUES].index, names))",
            ),
            "partial-cursor-as-before": (
                "types = [*SHORT_VALUES.items()][:last]",
                "types = [*VALUES.items()][:last]",
                UNREAD,
            ),
        },
    ),
    *_mutants(
        "short records",
        "core/events/compact_progress.py",
        {
            "first-token-boundary": (
                "return _PREFILLED + _encode(event) if event.v >= PROGRESS_VERSION",
                "return _PREFILLED + _encode(event) if event.v > PROGRESS_VERSION",
                WRITTEN,
            ),
            "end-as-first-token": (
                'before_array(COMPACT_FINISHED, "e")',
                'before_array(COMPACT_PREFILLED, "e")',
                WRITTEN,
            ),
            "map-of-a-later-version": (
                "msgspec.Meta(lt=PROGRESS_VERSION)",
                "msgspec.Meta(le=PROGRESS_VERSION)",
                NO_LATER,
            ),
            "map-read-as-array": ("v=self.version))}", "v=PROGRESS_VERSION))}", VERSION),
        },
    ),
    *_mutants(
        "short records",
        "core/events/routing.py",
        {
            "first-token-values-turned": (
                "    cached_tokens: int\n" + TAKEN + "    ttft_ms: int\n",
                "    ttft_ms: int\n    cached_tokens: int\n",
            ),
            "end-values-turned": (
                "    prompt_tokens: int\n    output_tokens: int\n",
                "    output_tokens: int\n    prompt_tokens: int\n",
                TOKENS_OF_ENDS,
            ),
        },
    ),
    *_mutants(
        "short records",
        "core/codec.py",
        {
            "first-token-beside-unknown": (
                "    if head.type in _COMPACT:\n",
                "    if head.type in COMPACT_TYPES:\n",
                NO_MIXTURE,
            ),
            "short-is-no-decision": (
                "return encoding[9:17] == _DECISION or encoding[7:15] == _DECISION",
                "return encoding[9:17] == _DECISION",
                WRITTEN,
            ),
        },
    ),
    *_mutants(
        "short records",
        f"{FOLDS}/routing_fold.py",
        {
            "version-read-kept": (
                "part.joined, part.identity, self._version_read = event, _identity(event), 0",
                "part.joined, part.identity = event, _identity(event)",
                WRITTEN,
            ),
            "version-read-highest": (
                "min(ROUTED_VERSION, *[1 if each is None else each.routed_version for each in joined])",
                "max([1 if each is None else each.routed_version for each in joined])",
                WRITTEN,
            ),
            "version-read-of-a-silent-replica": (
                "min(ROUTED_VERSION, *[1 if each is None else each.routed_version for each in joined])",
                "min([each.routed_version for each in joined if each is not None], default=ROUTED_VERSION)",
                WRITTEN,
            ),
            "version-read-behind-an-end": (
                "part, self._version_read = self.replicas.pop(source, None), 0",
                "part = self.replicas.pop(source, None)",
                WRITTEN,
            ),
            "version-read-of-a-stranger": (
                "        if writer not in self.replicas:\n            return 1\n",
                "",
                WRITTEN,
            ),
        },
    ),
    *_mutants(
        "short records",
        "actors/membership/routing_publisher.py",
        {
            "progress-unread": (
                "        if version < SHORT_VERSION:\n",
                "        if version < CONTINUED_VERSION:\n",
                WRITTEN,
            ),
            "progress-not-noted": (
                "        self.version_written = SHORT_VERSION\n        return event\n",
                "        return event\n",
                WRITTEN,
            ),
            "version-written-last": (
                "self.version_written = max(self.version_written, found.v)",
                "self.version_written = found.v",
                WRITTEN,
            ),
            "version-written-for-ever": (
                "        self.version_written = 1\n        for event in [*events",
                "        for event in [*events",
                WRITTEN,
            ),
        },
    ),
    *_mutants(
        "short records",
        f"{POLICY}/decide.py",
        {
            "record-of-version-3": (
                "v=version_read if version_read >= COMPACT_VERSION else 1",
                "v=version_read if version_read > COMPACT_VERSION else 1",
                WRITTEN,
            ),
        },
    ),
    *_mutants(
        "short records",
        "replay/recording/request_history.py",
        {
            "first-token-as-end": (
                "(PrefilledFields, RequestPrefilled)\n",
                "(PrefilledFields,)\n",
            ),
        },
    ),
    *_mutants(
        "short records",
        "replay/verify/prefill_checks.py",
        {
            "verdict-in-array-unread": (
                "    if event.type == COMPACT_PREFILLED:\n",
                "    if event.type == COMPACT_PREFILLED and event.prefill is not None:\n",
            ),
        },
    ),
    *_mutants(
        "short records",
        "replay/verify/partition.py",
        {
            "share-of-a-nameless-cursor": (
                "return event.cursor if event.d is None else cursor_of(event.d.cursor)",
                "return event.cursor if event.d is None else event.d.cursor",
            ),
        },
    ),
    *_mutants(
        "pools",
        f"{FOLDS}/kv_fold.py",
        {
            "pool-ended-counts": ("            self.pools.pop(source, None)\n", "", NO_POOLS),
            "pool-keeper-undigested": (
                "mix(pool.pool, pool.keeper, pool.name,",
                "mix(pool.pool, pool.name,",
            ),
            "pool-fence-undigested": ("pool.partition, *fence)", "pool.partition)", NO_POOLS),
            "pool-kind-undigested": ("pool.model, pool.kind, pool.block_size", "pool.model, pool.block_size"),
            "pools-of-worker-undigested": ("joined.group, *pools, *adapters,", "joined.group, *adapters,"),
        },
    ),
    *_mutants(
        "pools",
        f"{FOLDS}/state.py",
        {
            "pool-of-dead-keeper": ("if pool.keeper in alive and _fence(", "if _fence(", NO_POOLS),
            "pool-of-older-keeper": (" and _fence(pool) == fences[pool.pool]:", ":", NO_POOLS),
            "pool-fence-of-the-living": (
                "    for pool, _ in announced:\n        fences",
                "    for pool, _ in (each for each in announced if each[0].keeper in alive):\n        fences",
                NO_POOLS,
            ),
            "pool-of-any-kind": (
                "if kept := sources.get((pool_id, access.kind)):",
                "if kept := next((kept for (known, _), kept in sources.items() if known == pool_id), []):",
            ),
            "pool-of-first-source": (
                "next((source for keeper, source in kept if keeper == member.worker), kept[0][1])",
                "kept[0][1]",
                NO_POOLS,
            ),
            "pool-beyond-host": (
                "at_once = min(host + most, device + 2 * most)",
                "at_once = host + most",
                SMALL_HOSTS,
            ),
            "pool-beyond-loads": (
                "at_once = min(host + most, device + 2 * most)",
                "at_once = device + 2 * most",
            ),
            "pool-on-the-host": ("(device, host, near, max(", "(device, near, near, max("),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/block_seal.py",
        {
            "seal-unsummed": (
                'return None if checksum == xxhash.xxh3_128_digest(payload) else "checksum"',
                "return None",
                NO_DISK,
            ),
            "seal-of-any-weights": (
                "        if (magic, version, zero, digest) != (MAGIC, VERSION, 0, self._digest):\n",
                "        if (magic, version, zero) != (MAGIC, VERSION, 0):\n",
                NO_DISK,
            ),
            "seal-of-any-block": ("        if owner != name:\n", "        if False:\n", NO_DISK),
            "seal-of-cut-file": ("owner == name and file_bytes == HEADER_BYTES + length", "owner == name", NO_DISK),
            "facts-run-together": ('len(raw).to_bytes(8, "little") + raw', "raw", NO_DISK),
            "block-name-unkeyed": (
                "hashlib.blake2b(block, key=key, digest_size=DIGEST_BYTES)",
                "hashlib.blake2b(block, digest_size=DIGEST_BYTES)",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/weights_digest.py",
        {
            "weights-unread": (
                "        digest.update(bytes.fromhex(content))\n",
                "        digest.update(b'')\n",
                NO_DISK,
            ),
            "weights-of-before": ('if before.get(path, [""])[0] != state]', "if path not in before]", NO_DISK),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/block_store.py",
        {
            "disk-keeper-not-awaited": (
                "        if _holds(left_ns):\n            return\n",
                "",
                NO_DISK,
            ),
            "disk-over-budget": ("        return self._used <= room\n", "        return True\n", NO_DISK),
            "disk-without-headroom": ("self._size_max // HEADROOM_SHARE if", "0 if", NO_DISK),
            "disk-lets-all-go": (
                "while self._used - self._going_bytes > room - headroom",
                "while self._used > room - headroom",
                NO_DISK,
            ),
            "disk-used-again-goes": (
                " and (name not in self._going or self._take_back(name)):",
                ":",
                NO_DISK,
            ),
            "disk-written-again-goes": (
                "            if name in self._going and self._take_back(name):\n",
                "            if False:\n",
                NO_DISK,
            ),
            "disk-taken-still-counts": ("        self._forget_taken()\n", "", NO_DISK),
            "disk-removals-seen-once": (
                "if removals == self._removals_seen:",
                "if self._removals_seen:",
                NO_DISK,
            ),
            "disk-taken-is-refused": (
                "if name in self._going:  # the keeper took it away",
                "if False:",
                NO_DISK,
            ),
            "disk-going-unread": (
                "self._files.read(name, into, SUFFIX, GOING)",
                "self._files.read(name, into, SUFFIX)",
                NO_DISK,
            ),
            "disk-going-of-before": ("if named[2] != SUFFIX:", "if named[2] == UNFINISHED:", NO_DISK),
            "disk-unannounced-uncounted": ("            if left_ns is not None:\n", "            if False:\n", NO_DISK),
            "disk-stuck-untold": ("        self._stuck.add(name, size)\n", "", NO_DISK),
            "disk-stuck-is-free": ("        self._free(-size)\n", "", NO_DISK),
            "disk-stuck-for-ever": (
                "self._free(self._stuck.pop(name))\n                self._blocks",
                "self._blocks",
                NO_DISK,
            ),
            "disk-retries-for-ever": ("self._retries >= RETRIES_MAX or now_ms", "now_ms", NO_DISK),
            "disk-newest-goes": (
                "heapq.heappush(self._oldest, (stamp, name))\n                self._counts.add(stores=1",
                "heapq.heappush(self._oldest, (-stamp, name))\n                self._counts.add(stores=1",
                NO_DISK,
            ),
            "disk-stamps-unsaved": ("        self.save_stamps()\n        size =", "        size =", NO_DISK),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/keeper_lease.py",
        {
            "lease-for-ever": (
                "self._path.stat().st_mtime_ns - self._clock.monotonic_ns()",
                "self._path.stat().st_mtime_ns",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/stuck_files.py",
        {
            "stuck-unbounded": ("if len(self._sizes) < STUCK_MAX:", "if True:", NO_DISK),
            "stuck-beyond-bound-untold": ("            self._too_many = True\n", "            pass\n", NO_DISK),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/catalog_records.py",
        {
            "pool-record-unproved": ("if self._digest(body, use) != proof:", "if False:", NO_DISK),
            "pool-records-of-any-kind": (
                "hashlib.blake2b(kind, key=key, person",
                "hashlib.blake2b(b'', key=key, person",
                NO_DISK,
            ),
            "pool-hashes-in-the-clear": (
                "body = name + _xor(content, self._digest(name, _PADS[use]))",
                "body = name + content",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "pool files",
        "actors/kv_blocks/pool_folder.py",
        {
            "pool-of-a-copy": (" and place == inode:", ":", NO_DISK),
            "pool-listed-before-lease": (
                f"        self.lease.renew()\n        try:\n{OPENED}",
                f"        try:\n{OPENED}            self.lease.renew()\n",
                NO_DISK,
            ),
            "pool-removals-unseen": ("        self.lease.count_removal()\n", "", NO_DISK),
            "pool-renamed-stays": ("found[SUFFIX] - found[GOING]", "found[SUFFIX]", NO_DISK),
            "pool-listing-too-young": (
                "self._listed_ns = changed_ns if age_ns > SETTLED_NS else 0",
                "self._listed_ns = changed_ns",
                NO_DISK,
            ),
            "pool-torn-end-kept": (
                "                os.ftruncate(file, self._end)\n                if os.pwrite(file, records, self._end)",
                "                if os.pwrite(file, records, os.fstat(file).st_size)",
                NO_DISK,
            ),
            "pool-stranger-kept": ("[name for name in entries if self._is_ours(name)]", "[*entries]", NO_DISK),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_blocks/write_grant.py",
        {
            "grant-forgets-the-one-before": ("free_bytes - self._granted.bytes)", "free_bytes)", NO_DISK),
            "grant-to-each-in-full": ("share = room // len(writers) if", "share = room if", NO_DISK),
            "fence-unchecked": ("if newest > self.fence:", "if False:", NO_DISK),
            "fence-by-claim-alone": ("max([claim, *(fence + 1 for fence in keepers(folder))])", "claim", NO_DISK),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_blocks/shared_block_store.py",
        {
            "shared-grant-unspent": ("        self._spent += size\n", "", NO_DISK),
            "shared-grant-of-others": (" or self._writer not in found[1].writers:", ":", NO_DISK),
            "shared-grant-spent-for-ever": (
                "self._grant, self._spent = (fence, grant.number), 0",
                "self._grant = (fence, grant.number)",
                NO_DISK,
            ),
            "shared-drafts-of-one-name": ("-{self._writer}{UNFINISHED}", "-{'0' * 16}{UNFINISHED}", NO_DISK),
            "shared-stuck-is-held": ("if self._stuck.has(name):", "if False:", NO_DISK),
            "shared-older-stamp": ("if path.stat().st_mtime_ns < stamp:", "if True:", NO_DISK),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_blocks/shared_pool_folder.py",
        {
            "shared-newest-goes": (
                "sorted(files, key=files.__getitem__)",
                "sorted(files, key=files.__getitem__, reverse=True)",
                NO_DISK,
            ),
            "shared-used-goes": ("if path.stat().st_mtime_ns == stamp:", "if True:", NO_DISK),
            "shared-removed-unfenced": (
                "            self._fence.check()\n            try:\n                if path",
                "            try:\n                if path",
                NO_DISK,
            ),
            "shared-draft-for-ever": ("now_ns - status.st_mtime_ns > DRAFT_S * 1e9", "False", NO_DISK),
            "shared-drafts-uncounted": (
                "                    used += allocated(status.st_size)\n",
                "                    used += 0 if named[2] else allocated(status.st_size)\n",
                NO_DISK,
            ),
            "shared-of-any-kind": ("if kind != pool.kind.hex():", "if False:", NO_DISK),
            "shared-copy-is-the-pool": ("if place != inode:", "if False:", NO_DISK),
            "shared-catalogue-of-all-keepers": (
                'f"{self.fence:016x}{CATALOG_SUFFIX}"',
                'f"{0:016x}{CATALOG_SUFFIX}"',
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_blocks/entry_batches.py",
        {
            "entries-unbounded": ("max(0, BATCHES_MAX - waiting)", "BATCHES_MAX", NO_DISK),
            "entries-gone-unread": (
                "                self._read.append(path)\n",
                "                path.unlink()\n",
                NO_DISK,
            ),
            "dead-worker-has-a-share": ("<= LIVES_S * 1e9", "<= 1e30", NO_DISK),
        },
    ),
    *_mutants(
        "objects",
        "actors/kv_objects/object_pool.py",
        {
            "objects-credit-lowered-at-once": (
                "            totals.may_write - totals.finished_bytes,\n",
                "",
                NO_DISK,
            ),
            "objects-of-the-dead-free": ("self._lost += ", "self._lost += 0 * ", NO_DISK),
            "objects-newest-go": (
                "in self._blocks.items():\n            if excess",
                "in reversed(self._blocks.items()):\n            if excess",
                NO_DISK,
            ),
            "objects-removed-unfenced": (
                "left[REMOVED_AT_ONCE:]\n            self._fence.check()\n",
                "left[REMOVED_AT_ONCE:]\n",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "objects",
        "actors/kv_objects/pool_objects.py",
        {
            "objects-of-any-seal": (
                "return body if hmac.compare_digest(digest, self._digest(key, body)) else None",
                "return body",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "objects",
        "actors/kv_objects/object_block_store.py",
        {
            "objects-beyond-credit": ("if self._begun + size > may_write:", "if False:", NO_DISK),
            "objects-refused-stay": (
                "            self._ask(lambda: self._objects.delete([block_key(name)]))\n",
                "            self._ask(lambda: self._objects.has(block_key(name)))\n",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_pool/shared_pool.py",
        {
            "shared-fence-unsaid": ("replace(self._joined, fence=folder.fence)", "self._joined", NO_DISK),
            "shared-claim-of-others-goes": ("        if not self._stood:", "        if False:", NO_DISK),
            "shared-claim-kept-without-folder": (
                '                await self._step_down("another worker may keep the pool")\n',
                "",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_pool/entry_outbox.py",
        {
            "entries-before-their-files": (" if file in there][:room]", "][:room]", NO_DISK),
            "entries-beyond-the-keeper": (" if file in there][:room]", " if file in there]", NO_DISK),
        },
    ),
    *_mutants(
        "shared pool",
        "actors/kv_pool/pool_keeper.py",
        {
            "pool-entries-unread": ("        self._expect(received.items())\n", "", NO_DISK),
            "pool-entries-unacknowledged": (
                "            await self._in_thread(self._folder.acknowledge)\n",
                "            pass\n",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "pool keeper",
        "actors/kv_pool/waiting_entries.py",
        {"pool-newest-entries-dropped": ("self.popitem(last=False)", "self.popitem()", NO_DISK)},
    ),
    *_mutants(
        "pool keeper",
        "actors/kv_pool/pool_keeper.py",
        {
            "pool-removed-before-the-log": (
                "if self._listing.goes and await self.publisher.acknowledged(ACKNOWLEDGED_S):",
                "if self._listing.goes:",
                NO_DISK,
            ),
            "pool-removed-before-folds": ("                await asyncio.sleep(FOLD_S)\n", "", NO_DISK),
            "pool-lease-without-log": (
                "if self.publisher.holds_all and not failed_before:",
                "if not failed_before:",
                NO_DISK,
            ),
            "pool-lease-without-listing": (
                "if self.publisher.holds_all and not failed_before:",
                "if self.publisher.holds_all:",
                NO_DISK,
            ),
            "pool-lease-outlives": ("        self._folder.end()\n", "", NO_DISK),
            "pool-stuck-announced": ("self._listing.stays - self._stuck", "self._listing.stays", NO_DISK),
            "pool-too-many-stuck": (
                "frozenset() if self._stuck is None else",
                "self._listing.stays if self._stuck is None else",
                NO_DISK,
            ),
            "pool-gone-is-announced": ("        self.publisher.publish(self.mirror.remove(removed))\n", "", NO_DISK),
            "pool-gone-waits-not": (
                "            self._waiting.wait(file, entry)\n        self.publisher",
                "            pass\n        self.publisher",
                NO_DISK,
            ),
            "pool-stranger-announced": (
                "for file, entry in ready.items() if file in proved}",
                "for file, entry in ready.items()}",
                NO_DISK,
            ),
            "pool-removals-forgotten": ("        if not failed:\n", "        if True:\n", NO_DISK),
        },
    ),
    *_mutants(
        "pool keeper",
        "actors/kv_pool/pool_mirror.py",
        {
            "pool-prefixes-open": (
                "self._plain_root if entry.parent is None else self._block(entry.parent)",
                "self._plain_root",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "pool keeper",
        "actors/kv_pool/pool_publisher.py",
        {
            "pool-ended-source-holds-all": (
                "return self.outbox.idle and not self.outbox.ended",
                "return self.outbox.idle",
                NO_DISK,
            ),
            "pool-next-source-empty": (
                "        if self._mirror.reported:\n            self.publish(self._content())\n",
                "",
                NO_DISK,
            ),
        },
    ),
    *_mutants(
        "disk tier",
        "actors/engines/vllm/disk_tier.py",
        {
            "disk-stores-adapters": ("allowed = params.get(DISK_PARAMETER) is True", "allowed = True", NO_DISK),
            "disk-tails-last": ("return request.stamp - (", "return request.stamp + (", NO_DISK),
            "disk-loads-again": (" and key not in request.promised and", " and", NO_DISK),
            "disk-loads-unbounded": (
                "if max(len(request.promised), self._loading + self._promised) >= self._loads_max:",
                "if False:",
                NO_DISK,
            ),
            "disk-layout-unsealed": (
                "engine_digest(self._key, facts, layout_facts(config, self._row_bytes))",
                "engine_digest(self._key, facts)",
                NO_DISK,
            ),
            "disk-suspects-stay": ("        elif names:\n            self._store.remove(names)\n", "", NO_DISK),
        },
    ),
    *_mutants(
        "disk tier",
        "actors/engines/vllm/unconfirmed_pulls.py",
        {
            "unconfirmed-found-is-stored": (
                "if pull.first and depth < len(hashes)",
                "if False and depth < len(hashes)",
                NO_DISK,
            ),
            "unconfirmed-own-is-stored": ("if own is not None:", "if False:", NO_DISK),
        },
    ),
    *_mutants(
        "scale readers",
        "replay/explain/scale_explainer.py",
        {
            "explained-behind-moment": (
                "is_behind = self._place is not None and self._place.is_before(seq, event)",
                "is_behind = False",
                NO_SCALE,
            ),
            "explained-by-later-settings": ("inputs=recorded_inputs(fold, event),", "inputs=None,", NO_SCALE),
            "failure-of-any-order": ("if start in outcome.orders or (is_own and not start)", "if True", NO_SCALE),
            "orders-of-later-decisions": (
                "self._found.outcome, self._later is None",
                "self._found.outcome, True",
                NO_SCALE,
            ),
            "explained-gap-unseen": ("self._is_whole = self._is_whole and seq == self._next_seq", "pass", NO_SCALE),
        },
    ),
    *_mutants(
        "scale readers",
        "replay/whatif/virtual_fleet.py",
        {
            "oldest-start-cancelled": (
                "            self._due_ms.pop()",
                "            self._due_ms.popleft()",
                NO_SCALE,
            ),
            "start-takes-no-time": ("[now_ms + startup_ms] * missing", "[now_ms] * missing", NO_SCALE),
            "start-takes-no-device": ("return self.ready + self.starting", "return self.ready", NO_SCALE),
        },
    ),
    *_mutants(
        "scale readers",
        "replay/whatif/scale_rerun.py",
        {
            "range-without-its-start": (").previous for each", ") for each", NO_SCALE),
            "virtual-decision-forgotten": (
                "        fold.apply(decided)\n        fleet.resize",
                "        fold.apply(event)\n        fleet.resize",
                NO_SCALE,
            ),
            "start-up-as-recorded": ("learned if given is None else", "learned if True else", NO_SCALE),
            "none-serves-all": ("        attainment_bp = 0\n", "        attainment_bp = 10_000\n", NO_SCALE),
            "ready-at-the-end": (
                "workers, ready = fleet.workers, fleet.ready\n        fleet.advance(now_ms)",
                "fleet.advance(now_ms)\n        workers, ready = fleet.workers, fleet.ready",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/demand_reader.py",
        {
            "demand-counted-twice": (
                "            self._demand.skip(self._rolled[2])\n",
                "",
                NO_SCALE,
            ),
            "demand-start-untold": (
                "replace(each, since=int(self._since))",
                "each",
                NO_SCALE,
            ),
            "demand-open-unknown": ("rolled_ms - OPEN_MS", "rolled_ms", NO_SCALE),
            "demand-of-any-absence": (
                "is_there and self._now_ms() - rolled_ms <= ABSENCE_MAX_MS",
                "is_there",
                NO_SCALE,
            ),
            "period-always-short": ("round((at_ms - self._began_ms) / 1000)", "self._settings.period_s", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/scale_writer.py",
        {
            "planner-chain-unread": ("if not is_first and (message.n", "if False and (message.n", NO_SCALE),
            "planner-takes-others-message": ("last.payload == payload", "last.payload", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/quiet_periods.py",
        {
            "quiet-with-running-requests": (
                "rolled.waiting, rolled.running, rolled.ended",
                "rolled.waiting, rolled.ended",
                NO_SCALE,
            ),
            "quiet-for-ever": (" and self._held_s + period_s < QUIET_S", "", NO_SCALE),
            "quiet-thins-a-burst": (
                "older, newest = self._older, self._newest\n",
                "older, newest = {}, self._as_one(self._newest)\n",
                NO_SCALE,
            ),
            "quiet-before-workers-left": (
                "last.target == ready == coming == 0",
                "last.target == coming == 0",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "planner",
        "core/events/compact_scale.py",
        {
            "row-without-its-rest": ("UNSET if more == parts.more() else more", "UNSET", NO_SCALE),
            "row-of-a-later-version": (" or event.v != EVENT_V", "", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/forecast.py",
        {
            "level-of-no-period": ("while len(recent) > 1 and sum", "while sum", NO_SCALE),
            "step-is-an-error-for-ever": ("min(ERROR_MOST_BP, max(10_000,", "max(ERROR_MOST_BP, max(10_000,", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/planner_service.py",
        {
            "order-before-decision": (
                "seq = await lead.writer.append(events)",
                "seq = lead.writer._last_seq + 1",
                NO_SCALE,
            ),
            "advice-orders": ("            if fleet.settings.acts:\n", "            if True:\n", NO_SCALE),
            "planner-leads-by-its-own-clock": ("if not self.clock.is_known:", "if False:", NO_SCALE),
            "error-makes-a-burst": ("if self._settles:", "if False:", NO_SCALE),
            "late-log-makes-a-burst": ("if loop.time() - ended_s >= period_s + STALLED_S:", "if False:", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/model_fleet.py",
        {
            "planner-counts-prefill-workers": (
                "(found.role, found.model) != (self.planned.role, self.planned.model)",
                "found.model != self.planned.model",
                NO_SCALE,
            ),
            "successor-orders-again": ("coming=coming,", "coming=0,", NO_SCALE),
            "order-beyond-the-limit": (" + machine.coming, most)", " + machine.coming, most * 99)", NO_SCALE),
            "answer-to-another-recorded": (
                "if answer is None or target is None or not answer.fence == target.fence == fence:",
                "if answer is None or target is None:",
                NO_SCALE,
            ),
            "answer-recorded-each-period": (
                "self._acknowledged, None\n",
                "self._acknowledged, self._acknowledged\n",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/fleet_target.py",
        {
            "old-target-followed": (" or target.order < self._order", "", NO_SCALE),
            "target-unbounded": (
                "min(max(self.target.workers, self._least), self._most)",
                "self.target.workers",
                NO_SCALE,
            ),
            "lost-registry-ignored": ("change.value is None or change.revision < self._revision", "False", NO_SCALE),
            "registry-lost-between-two-looks": (" or change.revision < self._revision", "", NO_SCALE),
            "target-answered-again": ("if answer != self._acknowledged:", "if True:", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/kubernetes_hand.py",
        {
            "hand-acts-without-a-lead": ("        if not self._may_act():\n", "        if False:\n", NO_SCALE),
            "hand-trusts-its-first-look": (
                "            goal = await self._newest_goal()\n",
                "            goal = self._follower.goal\n",
                NO_SCALE,
            ),
            "pods-unmarked": ("if goal < before.replicas and", "if False and", NO_SCALE),
            "hand-is-silent": ("            await self._follower.acknowledge(self._registry, goal)\n", "", NO_SCALE),
            "scale-of-others-stays": ("            return REFRESH_S\n", "            return 99.0\n", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/kubernetes_scale.py",
        {
            "scale-at-any-version": (
                '"metadata": {"resourceVersion": version}, ',
                '"metadata": {"resourceVersion": None}, ',
                NO_SCALE,
            ),
            "oldest-pods-go": ("pod.metadata.name), reverse=True)", "pod.metadata.name))", NO_SCALE),
            "ready-pods-go": ("        pods.sort(key=lambda pod: pod.is_ready)", "        #", NO_SCALE),
            "mark-stays": ("if is_marked != goes:", "if goes:", NO_SCALE),
            "first-page-alone": ("if not page.metadata.next_page:", "if True:", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/scale_fold.py",
        {
            "gap-shrinks-at-once": (" and not self._is_gap(at_ms),", ",", NO_SCALE),
            "periods-counted-from-the-cut": ("        self.periods = event.periods\n", "", NO_SCALE),
            "surplus-stays": ("self._surplus_bp * event.period_s // SURPLUS_S", "0", NO_SCALE),
            "sizes-of-newest-rules": ("self._sizes[RULES[version]", "self._sizes[RULES[SCALE_VERSION]", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/recent_sizes.py",
        {
            "sums-of-events-that-went": (
                "            self._take(self._summed.popleft(), -1)",
                "            self._summed.popleft()",
                NO_SCALE,
            ),
            "sums-without-events-of-before": (
                "for event in newest[len(self._summed) :]:",
                "for event in []:",
                NO_SCALE,
            ),
            "sizes-of-any-workload": ("                break\n", "                pass\n", NO_SCALE),
            "longer-answers-are-alike": (
                "and _is_alike(output * last[0], last[2] * count)",
                "and True",
                NO_SCALE,
            ),
            "old-sizes-stay": (
                "while self._kept[0].at_ms <= first_ms and",
                "while not self._window_ms and",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "planner",
        "actors/planning/planner.py",
        {
            "settings-never-restated": (
                "elif fold.periods - fold.settings_stated >= RESTATE_PERIODS:",
                "elif False:",
                NO_SCALE,
            ),
            "capacity-never-restated": (
                "if fold.periods - fold.capacity_stated >= RESTATE_PERIODS:",
                "if False:",
                NO_SCALE,
            ),
            "dead-worker-takes-replacement": (
                "(*self._hopeful, *self._overdue), count",
                "self._pending, count",
                NO_SCALE,
            ),
            "dead-worker-expected-for-ever": ("self._surplus_ms >= GONE_MS", "self._surplus_ms >= 1e12", NO_SCALE),
        },
    ),
    *_mutants(
        "several models",
        "projections/scaling/fleet_decision.py",
        {
            "priorities-are-equal": (
                "groupby(by_priority, key=lambda need: need.priority)",
                "groupby(by_priority, key=lambda _: 0)",
                NO_SCALE,
            ),
            "lower-priority-loses-its-least": (
                "left = budget - sum(need.least * need.devices for need in needs)",
                "left = budget",
                NO_SCALE,
            ),
            "equals-never-even-out": ("        self._even_out()\n", "", NO_SCALE),
        },
    ),
    *_mutants(
        "several models",
        "projections/scaling/scale_fold.py",
        {"fall-for-others-regretted": (" and event.bound == BUDGET:", " and False:", NO_SCALE)},
    ),
    *_mutants(
        "roles",
        "projections/scaling/prefill_queue_model.py",
        {
            "transfer-takes-no-time": (
                "self._wait_us - transfer_us)",
                "self._wait_us)",
                NO_SCALE,
            ),
            "eased-prompts-wait-less": ("eased_us(each_us, self._bound_us, self._wait_us)", "self._bound_us", NO_SCALE),
            "transfer-shortens-the-wait": (
                "self._bound_us, self._wait_us)",
                "self._bound_us, self._bound_us)",
                NO_SCALE,
            ),
            "short-prompts-wait": ("if not each_us:", "if False:", NO_SCALE),
        },
    ),
    *_mutants(
        "roles",
        "actors/planning/planner.py",
        {
            "longest-transfer-counts": ("median_low(self", "max(self", NO_SCALE),
        },
    ),
    *_mutants(
        "roles",
        "projections/scaling/request_demand.py",
        {"decode-workers-compute-all": ("uncached = 0 if remote else uncached", "pass", NO_SCALE)},
    ),
    *_mutants(
        "roles",
        "projections/scaling/speed_model.py",
        {
            "pulled-prompts-slow-steps": ("if is_here and event", "if event", NO_SCALE),
            "cached-tokens-take-time": (" - report.remote_cached_tokens)", ")", NO_SCALE),
        },
    ),
    *_mutants(
        "roles",
        "actors/planning/planner_service.py",
        {"roles-share-a-target": ("ONLY_GROUP if is_only else", "ONLY_GROUP if True else", NO_SCALE)},
    ),
    *_mutants(
        "roles",
        "actors/planning/planner_settings.py",
        {"most-workers-of-both-roles": (" if key not in PREFILL_KEYS} | own", "} | own", NO_SCALE)},
    ),
    *_mutants(
        "several models",
        "projections/scaling/fleet_demand.py",
        {
            "lost-attempt-ends-a-request": (
                "case RequestFinished() if event.outcome in GOES_ON:",
                "case RequestFinished() if False:",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "several models",
        "replay/verify/scale_checks.py",
        {
            "division-unjudged": (
                "remade = within_budget(remade, workers, event.budget)",
                "remade = event",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "several models",
        "actors/planning/planner_service.py",
        {"overdue-of-all-models": ("        left -= more * devices\n", "", NO_SCALE)},
    ),
    *_mutants(
        "several models",
        "actors/planning/fleet_planner.py",
        {
            "undecided-model-without-devices": (
                "most -= max(planner.fold.settings.min, ready + planner.coming) * self._devices[model]",
                "most -= 0",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "several models",
        "api/deployment/shared_devices.py",
        {"device-given-twice": ("        self._left -= group.gpus\n", "", NO_SCALE)},
    ),
    *_mutants(
        "planner",
        "api/deployment/fleet_scaler.py",
        {
            "lowest-number-drains": ("serving, int(each.name", "serving, -int(each.name", NO_SCALE),
            "serving-worker-drains": ("each.name not in serving, int", "False, int", NO_SCALE),
            "number-taken-twice": ("(*self._workers, *self._beside)}", "self._workers}", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/speed_model.py",
        {
            "speed-of-unknown-counts": ("event.cached_tokens != CACHED_UNKNOWN and ", "", NO_SCALE),
            "speed-of-remote-prompts": (" and not stages.remote", "", NO_SCALE),
            "speed-of-failed-requests": (" or event.outcome not in SERVED", "", NO_SCALE),
            "speed-without-held-tokens": ("held + event.output_tokens // 2", "event.output_tokens // 2", NO_SCALE),
            "takeover-at-once": ("self._noted < TAKEOVER_SAMPLES or ", "", NO_SCALE),
            "prompts-of-others-in-steps": (" - others_us)", ")", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/measured_profile.py",
        {
            "noise-takes-the-highest": ("(high + low) // 2", "high", NO_SCALE),
            "more-requests-take-no-more": (" * number // fewer if column", " if column", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/scale_decision.py",
        {
            "search-ends-early": ("while most - least > 1:", "while most - least > 2:", NO_SCALE),
            "search-asks-missed-again": (
                "        if workers in self._missed:\n            return False\n",
                "",
                NO_SCALE,
            ),
            "smaller-fleet-without-margin": ("raised = raised_m(self._expected_m)", "raised = self._rate_m", NO_SCALE),
            "margin-above-the-forecast": (
                " + waiting_m if rules.relaxation else rate_m",
                " + waiting_m + rate_m",
                NO_SCALE,
            ),
            "relaxation-unbounded": (
                "min(ALL_BP, RULES[version].relaxation * above_bp)",
                "RULES[version].relaxation * above_bp",
                NO_SCALE,
            ),
            "relaxation-of-any-demand": (" - (ALL_BP - attainment_bp) * relaxed_bp // ALL_BP", "", NO_SCALE),
            "present-fleet-with-margin": (" and rate_m > self._rate_m", " and rate_m < self._rate_m", NO_SCALE),
            "surplus-unbounded": ("min(SPENT_MOST_BP, spent_bp)", "spent_bp", NO_SCALE),
            "lack-raises-the-goal": ("max(0, self.surplus_bp)", "self.surplus_bp", NO_SCALE),
            "surplus-of-old-rules": (" if rules.spends_surplus else 0", "", NO_SCALE),
            "idle-fleet-as-forecast": (" and not ends", "", NO_SCALE),
            "bounds-out-of-reach-ask-nothing": (
                ", eased_bp=goal.most_bp)",
                ")",
                NO_SCALE,
            ),
            "goal-of-less-than-nothing": ("most_bp=max(0, below_bp)", "most_bp=below_bp", NO_SCALE),
            "eased-bounds-alone": (
                "return found.attainment_bp >= self.at_bp(found.rate_m) - slack_bp and eased_bp",
                "return eased_bp",
                NO_SCALE,
            ),
            "no-time-is-enough": ("not (found.eased_bp or found.attainment_bp)", "False", NO_SCALE),
            "eased-bounds-of-old-rules": ("    if not rules.eases_bounds:\n", "    if False:\n", NO_SCALE),
            "zero-without-its-reason": ("target and not inputs.target and", "not target and", NO_SCALE),
        },
    ),
    *_mutants(
        "planner",
        "projections/scaling/queue_model.py",
        {
            "answers-go-round-once": ("others_us + rounds * sums[-1]", "others_us", NO_SCALE),
            "own-prompt-delays-answer": ("-until_own_us", "0", NO_SCALE),
            "single-request-follows-itself": (
                "        if not self._goes_round_whole:\n",
                "        if True:\n",
                NO_SCALE,
            ),
            "eased-wait-without-own-prompt": ("else alone_us + wait_us", "else wait_us", NO_SCALE),
            "steps-out-of-reach-count": (" and (in_time or not can_step)", " and in_time", NO_SCALE),
            "steps-within-reach-are-eased": (" and (in_time or not can_step)", "", NO_SCALE),
            "caches-spread-nothing": ("if follows else number % workers", "if False else number % workers", NO_SCALE),
            "measured-step-of-one-request": ("max(1, -(-resident // self._each_tokens))", "1", NO_SCALE),
        },
    ),
    *_mutants(
        "scale judge",
        "projections/scaling/scale_decision.py",
        {
            "judged-long-ago": (" or at_ms - judgement.asked_ms > JUDGED_MS", "", NO_SCALE),
            "judged-at-more-demand": (" * (ALL_BP - JUDGED_FALL_BP) // ALL_BP", " // ALL_BP", NO_SCALE),
            "worker-bought-for-nothing": (" or gain_bp < JUDGED_GAIN_BP", "", NO_SCALE),
            "judge-lowers-the-number": ("if judged > required:", "if judged:", NO_SCALE),
            "absence-is-an-answer": (
                "inputs.answer is None or inputs.answer.absent",
                "inputs.answer is None",
                NO_SCALE,
            ),
        },
    ),
    *_mutants(
        "scale judge",
        "projections/scaling/judge_plan.py",
        {"every-prompt-follows": ("if draw % start < cached else 0", "if start else 0", NO_SCALE)},
    ),
    *_mutants(
        "scale judge",
        "actors/planning/judge_process.py",
        {"answer-to-another-question": ("if not is_answer(plan, answer):", "if False:", NO_SCALE)},
    ),
    *_mutants(
        "scale judge",
        "actors/planning/planner.py",
        {"judge-asked-each-period": ("decided.at_ms - self._asked_ms >= JUDGE_EVERY_MS", "True", NO_SCALE)},
    ),
    *_mutants(
        "attached",
        "actors/engines/attached/assumed_cache.py",
        {
            "assumed-unbounded": ("while len(self._used) > self._blocks_max:", "while False:", NO_SERVERS),
            "assumed-head-goes-first": ("for name in reversed(chain):", "for name in chain:", NO_SERVERS),
            "assumed-salts-mix": ("scope = adapter, salt", "scope = adapter, None", NO_SERVERS),
            "assumed-parent-lost": ("parent=chain[first - 1] if first else None,", "parent=None,", NO_SERVERS),
            "assumed-beyond-room": (
                "count = min(len(tokens) // size, self._blocks_max)",
                "count = len(tokens) // size",
                NO_SERVERS,
            ),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/attached/attached_engine.py",
        {
            "salts-of-any-server": (
                "self._keeps_salts_apart = stored.cache_salt == salt",
                "self._keeps_salts_apart = True",
                NO_SERVERS,
            ),
            "assumed-last-token": ("tokens_to_bytes(made[:-1])", "tokens_to_bytes(made)", NO_SERVERS),
            "server-adapters-of-the-start": ("if self._adapters_loaded:", "if False:", NO_SERVERS),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/attached/server_adapters.py",
        {
            "server-adapter-from-elsewhere": ('model.get("root") == str(copy.folder)', "True", NO_SERVERS),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/attached/generate_call.py",
        {
            "generate-repeats-tokens": ("tokens=tuple(ids[len(ids) - new :])", "tokens=tuple(ids)", NO_SERVERS),
            "generate-cached-each-time": ("meta.cached_tokens if first else None", "meta.cached_tokens", NO_SERVERS),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/attached/sglang_profile.py",
        {
            "sglang-port-of-first-rank": ("{port + rank}", "{port}", NO_SERVERS),
            "sglang-load-of-a-priority": (' and not labels.get("priority")', "", NO_SERVERS),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/kv_events/sglang_event_reader.py",
        {
            "sglang-salt-behind-parent": (
                "cache_salt=event.cache_salt if parent is None else None",
                "cache_salt=event.cache_salt",
                NO_SERVERS,
            ),
            "sglang-pairs-indexed": (
                "        and not pairs\n",
                "",
                NO_SERVERS,
            ),
            "sglang-numbered-adapter": (
                "        and (event.lora_id is None or event.lora_name is not None)\n",
                "",
                NO_SERVERS,
            ),
        },
    ),
    *_mutants(
        "attached",
        "actors/engines/kv_events/kv_event_feed.py",
        {"replay-with-topic-only": ("*_, number, payload = frames", "_, _, number, payload = frames", NO_SERVERS)},
    ),
    *_mutants(
        "adapters",
        "core/events/kv.py",
        {"adapter-is-its-name": ('return f"{name}{ADAPTER_SEPARATOR}{digest}"', "return name")},
    ),
    *_mutants(
        "adapters",
        f"{FOLDS}/kv_fold.py",
        {
            "adapter-uncounted": ("(each.id, each.rank, each.loaded_ms)", "(each.name,)"),
            "adapter-unloaded-stays": ("                del others[event.name]\n", "                pass\n"),
            "adapter-evicted-ends": ("if isinstance(event, AdapterEvicted):", "if False:", NO_EVICTION),
            "adapter-of-any-digest-ends": (" and others[event.name].digest == event.digest", ""),
        },
    ),
    *_mutants(
        "adapters",
        f"{POLICY}/candidates.py",
        {"adapter-of-any-worker": ("if member.worker not in holders", "if False")},
    ),
    *_mutants(
        "adapters",
        f"{POLICY}/decide.py",
        {"adapter-undigested": ('(*everything, "adapter", request.adapter)', "everything")},
    ),
    *_mutants(
        "adapters",
        "actors/engines/engine_adapters.py",
        {
            "adapter-number-again": ("next(self._numbers))", "len(self._entries) + 1)", NO_ADAPTERS),
            "adapter-goes-under-requests": ("while entry.requests:", "while False:", NO_ADAPTERS),
            "adapter-unloaded-takes-requests": (
                "if entry is None or entry.retired or not entry.attached:",
                "if entry is None or not entry.attached:",
                NO_ADAPTERS,
            ),
            "adapter-path-moves": ("_folder_name(copy)))", 'f"copy-{copy.number}"))', NO_ADAPTERS),
            "adapters-unbounded": (
                "for entry in self._entries.values()) >= ADAPTERS_MAX\n",
                "for entry in ()) >= 64\n",
                NO_ADAPTERS,
            ),
        },
    ),
    *_mutants(
        "adapters",
        "actors/router/adapter_catalog.py",
        {
            "adapter-oldest-counts": ("max(ours, key=", "min(ours, key=", NO_ADAPTERS),
            "adapter-unloaded-is-away": (" and not gone.holders & alive:", ":", NO_ADAPTERS),
            "adapters-away-unbounded": ("while len(self._away) > AWAY_MAX:", "while False:", NO_ADAPTERS),
        },
    ),
    *_mutants(
        "adapters",
        "actors/membership/worker_membership.py",
        {
            "adapter-lost-with-id": (
                "self._joined = msgspec.structs.replace(self._joined, adapters",
                "_ = msgspec.structs.replace(self._joined, adapters",
                NO_ADAPTERS,
            ),
        },
    ),
    *_mutants(
        "adapters",
        "actors/worker/adapter_slots.py",
        {
            "adapter-newest-goes": ("self._requests.move_to_end(adapter)", "pass", NO_ADAPTERS),
            "adapter-goes-with-requests": ("if not requests), None)", "if True), None)", NO_ADAPTERS),
        },
    ),
    *_mutants(
        "adapters",
        "actors/router/adapter_loads.py",
        {
            "load-pushes-out-none": ("self._load_us * (2 if _is_full(member) else 1)", "self._load_us", NO_ADAPTERS),
            "load-counts-in-full": ("self._load_us - (now_us - begun_us)", "self._load_us", NO_ADAPTERS),
        },
    ),
    *_mutants(
        "adapters",
        "actors/worker/adapter_placement.py",
        {
            "adapter-on-first-worker": ('f"{adapter}\\0{worker}".encode()', "worker.encode()", NO_ADAPTERS),
            "adapter-on-all-workers": ("worker))[:replicas]", "worker))", NO_ADAPTERS),
            "adapter-moves-with-a-gap": (
                "adapters_placed for each in chosen)",
                "adapter_catalog for each in chosen)",
                NO_ADAPTERS,
            ),
            "adapter-on-worker-without-files": ("if adapter in each.adapter_catalog]", "if True]", NO_ADAPTERS),
            "adapter-lost-worker-counts": (
                "elif self._registered.pop(change.key, None) is None:",
                "elif True:",
                NO_ADAPTERS,
            ),
        },
    ),
    *_mutants(
        "simulated pools",
        "actors/engines/simulated/simulated_pool_files.py",
        {
            "simulated-used-block-goes": (
                "if name in self._files and self._files[name].stamp == stamp]",
                "if name in self._files]",
                SIMULATED,
            ),
            "simulated-grant-forgets-the-one-before": (
                "- len(self._files) - self._granted)",
                "- len(self._files))",
                SIMULATED,
            ),
        },
    ),
    *_mutants(
        "simulated pools",
        "actors/engines/simulated/simulated_disk_tier.py",
        {
            "simulated-reads-unbounded": (
                "room = self.load_blocks - max(read_before, sum(blocks for _, blocks in self._reads))",
                "room = self.load_blocks",
                SIMULATED,
            ),
        },
    ),
    *_mutants(
        "simulated pools",
        "replay/simulate/simulated_pool.py",
        {
            "simulated-removal-unannounced": (
                "[*self._mirror.remove(gone), *self._mirror.store(ready.values())]",
                "self._mirror.store(ready.values())",
                SIMULATED,
            ),
            "simulated-fence-stays": ("fence=self._number if", "fence=1 if", SIMULATED),
        },
    ),
    *_mutants(
        "fetches",
        f"{POLICY}/prefix_fetch.py",
        {
            "fetch-of-any-kind": ("or address.kind != own.kind:", "or False:", NO_FETCHES),
            "fetch-from-suspected": ("and worker not in out and", "and", NO_FETCHES),
            "fetch-sources-unbounded": ("busy.get(worker, 0) < FETCHES_MAX", "True", NO_FETCHES),
            "fetch-takes-no-time": ("max(0, needed_m - credit) + moving_m", "max(0, needed_m - credit)", NO_FETCHES),
            "fetch-behind-the-pool": ("has = candidate.overlap[HOST]", "has = candidate.overlap[-1]", NO_FETCHES),
            "fetch-loads-the-pool": ("overlap=kept + kept[HOST:] * (", "overlap=candidate.overlap or (", NO_FETCHES),
        },
    ),
    *_mutants(
        "fetches",
        "actors/router/running_fetches.py",
        {
            "fetch-failure-forgotten": ("now_us + FAILED_US", "now_us", NO_FETCHES),
        },
    ),
    *_mutants(
        "fetches",
        "actors/kv_fetch/block_client.py",
        {
            "fetch-checksum-unread": ("if checksum(channel.seed, name, row) != proof:", "if False:", NO_FETCHES),
            "fetch-from-any-server": (
                "if not is_proof(proof, server_proof",
                "if False and (proof, server_proof",
                NO_FETCHES,
            ),
        },
    ),
)
"""All of them, by area."""
