"""Old decisions: every one of each version of the rules comes out as it was, bit for bit.

`make_decisions` has written the logs. A change of the rules without a new version fails here, in the first decision
that comes out otherwise.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import UNSET

from core.events import RequestPrefilled, RequestRejected
from core.events.routing import DECIDE_VERSION, PROGRAM_VERSION
from core.ids import WorkerId, from_column
from core.settings import APPROXIMATE, POLICIES
from core.subjects import ROUTING
from projections.folds.state import DISK, NO_OVERLAP
from projections.policy import policies
from projections.policy.cost import ESTIMATING_POLICIES, FIRST_ACTIVE_TOKENS, ScoredCandidate, score
from projections.policy.decide import decide
from projections.policy.policies import TEMPERATURE_POLICIES, rank
from projections.policy.prefill_choice import PREFILL_REASONS, PrefillInputs, prefill_reason
from projections.policy.rules import RULES
from replay.playback.playback import Playback, RecordedDecision
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.verify import VerifyResult, verify
from tests.golden.make_decisions import FOLDER, path_of
from tests.replay.staged import KEY

FILES = {int(path.stem.removeprefix("decisions_v")): path for path in sorted(FOLDER.glob("decisions_v*.contrail"))}
DECISIONS_MIN = 500
"""In each of them."""
CHANGED = """
{differ} of version {version} of the rules come out otherwise, first {first}.

The rules have changed, and logs have decisions that the rules made as they were. So the change needs a new version:
move the functions as they were to projections/policy/rules_v{version}.py, name them in RULES[{version}], put the new
ones into RULES[{next}], raise DECIDE_VERSION and PROGRAM_VERSION, and run `python -m tests.golden.make_decisions`.
"""


def verified(version: int) -> VerifyResult:
    with Recording.open(FILES[version], KEY) as recording:
        return verify(recording)


def check(version: int) -> None:
    """All of that version come out as they were."""
    found = verified(version)
    differ, first = found.different + found.refusals.different + found.prefills.different, ""
    if found.differences:
        it = found.differences[0]
        first = f"{it.request} in {it.term}: {it.term_recorded} was recorded, {it.term_recomputed} comes out"
    elif found.prefills.differences:
        other = found.prefills.differences[0]
        first = f"the prefill verdict on {other.request} in {other.term}: {other.recorded}, now {other.recomputed}"
    assert not differ, CHANGED.format(differ=differ, version=version, first=first, next=max(RULES) + 1)
    assert (found.not_judged, found.refusals.not_judged, found.prefills.not_judged) == ({}, 0, {})
    assert found.verified == found.decisions > DECISIONS_MIN
    assert found.refusals.verified > 2
    assert found.prefills.verified > 200
    assert {each.kind for each in found.proof.breaks} == {"missing"}  # of the worker of which messages were lost


@pytest.mark.parametrize("version", FILES)
def test_every_decision_is_what_it_was(version: int) -> None:
    """By the version of the rules that made it."""
    check(version)


def test_version_6_differs_by_the_digest_alone() -> None:
    """Each decision of version 5 is the same by version 6, but for the bytes that its digest covers."""
    with Recording.open(FILES[5], KEY) as recording:
        for at in Playback(recording, gaps=Gaps()):
            asked = at.view, at.request, at.settings, at.event.now_ms, at.event.seed
            before, after = (decide(*asked, version=version) for version in (5, 6))
            assert before._replace(version=6, digest="") == after._replace(digest="")
            assert before.digest == at.event.digest != after.digest


def test_version_7_differs_in_costs_among_talks_alone() -> None:
    """Each decision of version 6 under another policy, or without talks, is the same by version 7 but for its digest.
    Of the others, some choose another worker."""
    found = dict.fromkeys(("same", "costs", "worker"), 0)
    for file in (6, 7):
        with Recording.open(FILES[file], KEY) as recording:
            for at in Playback(recording, gaps=Gaps()):
                asked = at.view, at.request, at.settings, at.event.now_ms, at.event.seed
                before, after = (decide(*asked, version=version) for version in (6, 7))
                if at.settings.policy != "time" or not after.backlog.reuse_max:
                    backlog = after.backlog._replace(prices_first_active=before.backlog.prices_first_active)
                    assert before._replace(version=7, digest="") == after._replace(digest="", backlog=backlog)
                    found["same"] += 1
                    continue
                costs = ({each.candidate.worker: each.cost for each in it.ranked} for it in (before, after))
                found["costs"] += next(costs) != next(costs)
                found["worker"] += before.worker != after.worker
    assert min(found.values()) > 3, found


def test_version_8_differs_in_costs_of_turnover_alone() -> None:
    """Each decision of version 7 under another policy, or without more turnover anywhere, is the same by version 8 but
    for its digest. Of the others, some choose another worker."""
    found = dict.fromkeys(("same", "costs", "worker"), 0)
    for file in (7, 8):
        with Recording.open(FILES[file], KEY) as recording:
            for at in Playback(recording, gaps=Gaps()):
                asked = at.view, at.request, at.settings, at.event.now_ms, at.event.seed
                before, after = (decide(*asked, version=version) for version in (7, 8))
                if not after.backlog.turnover:
                    assert before._replace(version=8, digest="") == after._replace(digest="")
                    found["same"] += 1
                    continue
                assert at.settings.policy == "time"
                costs = ({each.candidate.worker: each.cost for each in it.ranked} for it in (before, after))
                found["costs"] += next(costs) != next(costs)
                found["worker"] += before.worker != after.worker
    assert min(found.values()) > 3, found


def test_the_program_names_the_version_of_its_package() -> None:
    """Replicas join with it, and it excuses rules that another program lacks."""
    assert tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["version"] == PROGRAM_VERSION


def test_every_version_has_its_log() -> None:
    """Each file is of one version, and was written by a program that is newer than those of versions before."""
    assert FILES.keys() == RULES.keys(), "python -m tests.golden.make_decisions writes the log of a new version"
    programs = []
    for version, path in FILES.items():
        assert path == path_of(version)
        with Recording.open(path, KEY) as recording:
            assert {at.event.decide_version for at in Playback(recording, gaps=Gaps())} == {version}
            (program,) = set(recording.replicas.versions.values())
            programs.append([int(number) for number in program.split(".")])
    assert programs == sorted(programs)
    assert len(programs) == len({*map(tuple, programs)}), "PROGRAM_VERSION is raised with DECIDE_VERSION"
    assert programs[-1] <= [int(number) for number in PROGRAM_VERSION.split(".")]


@pytest.mark.parametrize("path", FILES.values(), ids=lambda path: path.stem)
def test_the_log_has_every_state(path: Path) -> None:
    """Every case that the rules distinguish is in a decision: else a change of it would pass."""
    with Recording.open(path, KEY) as recording:
        decisions = list(_facts(Playback(recording, gaps=Gaps())))
        events = [event for _, message in recording.messages(ROUTING) for event in message.events]
    facts = {fact for each in decisions for fact in each}
    assert facts >= {
        *((policy, "chosen") for policy in POLICIES),
        *((policy, "temperature") for policy in TEMPERATURE_POLICIES),
        *(("kv", fact) for fact in ("tie margin", "tiers", "pending", "stale", "unknown cache", "equal", "prefer")),
        *(("time", fact) for fact in ("tie margin", "wait", "held", "learned", "given time", "pending")),
        *(("session", fact) for fact in ("named", "by prefix", "wait", "beyond the bound")),
        *((APPROXIMATE, fact) for fact in ("retention", "cached")),
        *(("", reason) for reason in ("other_model", "other_block_size", "not_connected", "draining", "overloaded")),
        *(("", reason) for reason in ("suspected", "failed", "last resort", "another attempt", "all recorded")),
        ("", "some recorded"),
        *(("time", fact) for fact in ("reuse", "equal") if _version_of(path) > 1),
        *(("time", fact) for fact in ("hidden reuse",) if _version_of(path) > 2),
        *(("", reason) for reason in ("other_adapter", "adapter") if _version_of(path) > 4),
        *(("time", fact) for fact in ("below first tokens", "at first tokens", "beyond") if _version_of(path) > 6),
        *(("time", fact) for fact in ("turnover", "far below", "all alike") if _version_of(path) > 7),
        *((policy, fact) for policy in ("kv", "time") for fact in ("pool", "pool's bound") if _version_of(path) > 3),
    }
    refused = [event for event in events if isinstance(event, RequestRejected)]
    assert {event.reason for event in refused} == {"overloaded", "no_workers"}
    verdicts = [event.prefill for event in events if isinstance(event, RequestPrefilled) and event.prefill is not None]
    assert {report.reason for report in verdicts} == set(PREFILL_REASONS)


def _version_of(path: Path) -> int:
    return int(path.stem.removeprefix("decisions_v"))


def _facts(playback: Playback) -> Iterator[set[tuple[str, str]]]:
    for at in playback:
        assert isinstance(at, RecordedDecision)
        policy, event = at.event.policy, at.event
        own = {(policy, fact) for fact, holds in _of_policy(at).items() if holds}
        left = {worker for reason in ("suspected", "failed") for worker in at.view.local.get(reason, ())}
        yield (
            own
            | {("", reason) for reason in event.excluded}
            | {
                ("", fact)
                for fact, holds in {
                    "last resort": event.worker in left,
                    "another attempt": event.attempt > 0,
                    "adapter": event.adapter is not UNSET,
                    "all recorded": event.candidates_total == len(from_column(event.candidates)),
                    "some recorded": event.candidates_total > len(from_column(event.candidates)),
                }.items()
                if holds
            }
        )


def _of_policy(at: RecordedDecision) -> dict[str, bool]:
    event, settings = at.event, at.settings
    columns = event.columns
    workers, stale = from_column(event.candidates), at.view.local.get("stale", frozenset())
    with_pools, without = (at.view.state.reported(at.request.prompt, pools=pools) for pools in (True, False))
    readers = at.view.state.pool_readers()
    pooled = [(with_pools.get(it.worker, NO_OVERLAP), without.get(it.worker, NO_OVERLAP)) for it in readers]
    deep = [without.get(it.source, NO_OVERLAP)[DISK] for it in readers]
    first = FIRST_ACTIVE_TOKENS // event.block_size
    active = columns["active_blocks"] if max(columns.get("reuse", ()), default=0) else ()
    return {
        "chosen": True,
        "temperature": settings.temperature_m > 0 and columns["cost"][0] > min(columns["cost"]),
        "tie margin": settings.tie_margin_m > 0 and columns["cost"][0] > min(columns["cost"]),
        "tiers": any(one < both for one, both in zip(columns["overlap"], columns["overlap_all"], strict=True)),
        "pending": any(map(int.__gt__, columns["pending"], columns["overlap_all"])),
        "stale": any(worker in stale and held for worker, held in zip(workers, columns["overlap"], strict=True)),
        "unknown cache": 0 in columns["known"],
        "equal": len(set(columns["cost"])) < len(columns["cost"]),
        "prefer": bool(event.prefer),
        "wait": any(columns.get("wait_us", ())),
        "reuse": any(columns.get("reuse", ())),
        "below first tokens": any(0 < blocks < first for blocks in active),
        "at first tokens": first in active,
        "beyond": any(blocks > first for blocks in active),
        "turnover": any(columns.get("turnover", ())),
        "far below": event.policy == "time" and _is_far_below(at),
        "all alike": event.policy == "time" and bool(at.view.state.loads.turnover) and "turnover" not in columns,
        "hidden reuse": len(columns.get("reuse", ())) > len(workers),
        "held": bool(event.held) and event.policy in ESTIMATING_POLICIES,
        "learned": bool(event.prefill_time),
        "given time": settings.prefill_us_per_token_m > 0,
        "named": bool(event.session),
        "by prefix": not event.session,
        "beyond the bound": any(columns["cost"]),
        "retention": event.believed is not None,
        "cached": any(columns["overlap"]),
        "pool": any(found != device for found, device in pooled),
        "pool's bound": any(
            device[DISK] < found[DISK] < in_pool for (found, device), in_pool in zip(pooled, deep, strict=True)
        ),
    }


# --- changes of the rules without a new version ------------------------------------------------------------------


def _sign(*given: object) -> list[ScoredCandidate]:
    return [each._replace(cost=-each.cost) for each in score(*given)]  # type: ignore[arg-type]


def _rounded(*given: object) -> list[ScoredCandidate]:
    """A unit of a thousandth of a block."""
    return [each._replace(cost=each.cost + (each.cost % 7 == 3)) for each in score(*given)]  # type: ignore[arg-type]


def _other_order(*given: object) -> list[ScoredCandidate]:
    """The last two change places."""
    ranked = rank(*given)  # type: ignore[arg-type]
    return [*ranked[:-2], *reversed(ranked[-2:])]


def _is_far_below(at: RecordedDecision) -> bool:
    """A candidate has so little turnover that it counts as more."""
    asked, version = (at.view, at.request, at.settings, at.event.now_ms, at.event.seed), at.event.decide_version
    excess = decide(*asked, version=version).backlog.turnover
    reported = at.view.state.loads.turnover
    least = min((reported.get(WorkerId(worker), 0) for worker in from_column(at.event.candidates)), default=0)
    return any(reported[worker] - more > least for worker, more in excess.items())


def _at_the_bound(inputs: PrefillInputs) -> str:
    """A prompt of just the least length."""
    return prefill_reason(inputs._replace(min_tokens=inputs.min_tokens - 1))


@pytest.mark.parametrize(
    ("name", "function"),
    [("score", _sign), ("score", _rounded), ("rank", _other_order), ("prefill_reason", _at_the_bound)],
    ids=["sign", "rounding", "order", "bound"],
)
def test_a_change_without_a_new_version_fails(monkeypatch: pytest.MonkeyPatch, name: str, function: object) -> None:
    """The message names the decision and says to add a version."""
    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(**{name: function}))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"RULES\[9\], raise DECIDE_VERSION and PROGRAM_VERSION"):
        check(DECIDE_VERSION)


def test_a_change_of_one_policy_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the draws by temperature, but for the first, are half as much."""
    table = (policies.SOFT_TABLE[0], *(weight // 2 for weight in policies.SOFT_TABLE[1:]))
    monkeypatch.setattr(policies, "SOFT_TABLE", table)
    with pytest.raises(AssertionError, match="come out otherwise"):
        check(1)
