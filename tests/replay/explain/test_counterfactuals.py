"""What would have had to differ for the runner-up to win: each change that is named makes it win, and less does not."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import msgspec
import pytest

from core.block_spans import single
from core.ids import RequestId, WorkerId
from core.prompt import hashes_from_bytes
from core.settings import POLICIES, WEIGHT_MAX, RoutingSettings
from core.subjects import LOAD
from projections.policy.cost import MILLI, score
from projections.policy.decide import decide
from projections.policy.policies import rank
from projections.policy.view import Candidate, RouteRequest
from replay.explain.cost_breakdown import choice_probabilities
from replay.explain.counterfactuals import Counterfactual, required_changes
from replay.explain.decision_inputs import decision_inputs, recorded_candidates, routed_event
from replay.explain.explanation import RequiredChange
from replay.explain.sentences import counterfactual_of, runner_up
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from tests.projections.facts import joined, load, prompt, stored, worker_id
from tests.replay.staged import KV, A, B, C, Stage

PROMPT = prompt(*range(40))
WEIGHTS = ("prefill_weight", "decode_weight", "request_weight")


def some_case(random: Random) -> Counterfactual:
    """A decision about whatever."""
    workers = [WorkerId(worker_id(number)) for number in range(random.randrange(2, 6))]
    candidates = []
    for worker in workers:
        depths = sorted(random.randrange(41) for _ in range(4)) if random.random() < 0.7 else [0] * 4
        candidates.append(
            Candidate(
                worker,
                "tiny",
                PROMPT.block_size,
                1000,
                cache_known=True,
                overlap=tuple(depths),
                pending=random.choice([0, 0, random.randrange(41)]),
                active_blocks=random.randrange(60),
                active_requests=random.randrange(6),
                prefill_tokens=random.choice([0, random.randrange(200)]),
                waiting=random.randrange(3),
                draining=False,
            )
        )
    settings = RoutingSettings(
        policy=random.choice(["kv", "kv", "kv", "least-loaded"]),
        prefill_weight_m=random.choice([1000, random.randrange(3000)]),
        decode_weight_m=random.choice([1000, random.randrange(3000)]),
        request_weight_m=random.choice([0, 0, random.randrange(3000)]),
        tie_margin_m=random.choice([0, 0, 0, random.randrange(3000)]),
    )
    request = RouteRequest(RequestId(f"r{random.random()}"), 0, "tiny", PROMPT)
    stale = frozenset(worker for worker in workers if random.random() < 0.1)
    return Counterfactual(candidates, request, settings, stale, 0, random.getrandbits(64))


def winner(it: Counterfactual, settings: RoutingSettings, candidates: list[Candidate]) -> str:
    """By the rules alone."""
    scored = score(candidates, it.request, settings, it.stale)
    return rank(scored, it.request, settings, it.turn, it.seed)[0].candidate.worker


def with_value(it: Counterfactual, other: Candidate, what: str, value: float) -> str:
    """Who wins if that one thing has the value."""
    if what in WEIGHTS:
        changed = msgspec.structs.replace(it.settings, **{f"{what}_m": round(value * MILLI)})
        return winner(it, changed, it.candidates)
    new = on_device(other, int(value)) if what == "cached_blocks" else other._replace(**{what: int(value)})  # type: ignore[arg-type]
    return winner(it, it.settings, [new if each.worker == other.worker else each for each in it.candidates])


def on_device(candidate: Candidate, depth: int) -> Candidate:
    """With that much of the prompt on the device."""
    return candidate._replace(overlap=tuple(max(level, depth) for level in candidate.overlap))


def nearer(it: Counterfactual, need: RequiredChange, random: Random) -> list[float]:
    """Values nearer to what it was; of weights, by more than rounding makes of them. None with a tie margin."""
    if need.what not in WEIGHTS:
        return [need.would_be + (1 if need.was > need.would_be else -1)]
    if it.settings.tie_margin_m or abs(need.was - need.would_be) < 0.1:
        return []
    near = need.would_be + 0.1 * (need.was - need.would_be)
    return [round(random.uniform(near, need.was), 3) for _ in range(5)]


def within(need: RequiredChange, random: Random) -> list[float]:
    """Some of the values of a weight that the text says will do."""
    told = re.match(r"\w+ ([\d.]+)(?: to ([\d.]+)| (or less|or more))? instead of", need.text)
    if told is None:
        assert need.what not in WEIGHTS
        return []
    near = float(told[1])
    far = float(told[2]) if told[2] else {"or less": 0.0, "or more": WEIGHT_MAX, None: near}[told[3]]
    return [near, far, *(round(random.uniform(near, far), 3) for _ in range(5))]


def test_each_change_that_is_named_suffices_and_less_does_not() -> None:
    """Of hundreds of decisions of all kinds, by deciding again with the change."""
    random, found = Random(4), dict[str, int]()
    for _ in range(400):
        it = some_case(random)
        chosen = winner(it, it.settings, it.candidates)
        for other in it.candidates:
            if other.worker == chosen:
                continue
            for need in required_changes(it, other):
                found[need.what] = found.get(need.what, 0) + 1
                assert with_value(it, other, need.what, need.would_be) == other.worker, need
                for value in nearer(it, need, random):
                    assert with_value(it, other, need.what, value) != other.worker, (need, value)
                for value in within(need, random):
                    assert with_value(it, other, need.what, value) == other.worker, (need, value)
    assert found.keys() == {"cached_blocks", "active_blocks", "prefill_tokens", "active_requests", "waiting", *WEIGHTS}
    assert min(found.values()) > 10


def test_nothing_that_would_have_sufficed_is_left_out() -> None:
    """Where no weight and no number of blocks is named, none makes the other win."""
    random, missing = Random(5), 0
    for _ in range(60):
        it = exact_case(random)
        chosen = winner(it, it.settings, it.candidates)
        other = next(each for each in it.candidates if each.worker != chosen)
        named = {need.what for need in required_changes(it, other)}
        if "cached_blocks" not in named:
            depths = range(other.overlap[0], PROMPT.blocks_reusable + 1)
            assert all(with_value(it, other, "cached_blocks", depth) != other.worker for depth in depths)
            missing += 1
        if "active_blocks" not in named:
            below = range(other.active_blocks + 1)
            assert all(with_value(it, other, "active_blocks", value) != other.worker for value in below)
            missing += 1
        for weight in WEIGHTS:
            if weight not in named:
                values = range(0, 20_000, 37)
                assert all(with_value(it, other, weight, value / MILLI) != other.worker for value in values), weight
                missing += 1
    assert missing > 40


def exact_case(random: Random) -> Counterfactual:
    """One without a tie margin, under kv: there the bounds of weights are exact."""
    it = some_case(random)
    return it._replace(settings=msgspec.structs.replace(it.settings, policy="kv", tie_margin_m=0))


def test_the_changes_hold_in_the_world_itself(tmp_path: Path) -> None:
    """Blocks put into the index, and weights into the settings: `decide` gives the runner-up."""
    stage = Stage()
    asked = prompt(*range(20))
    hashes = hashes_from_bytes(asked.hashes())
    for worker, blocks in ((A, 12), (B, 4)):
        stage.say(KV, worker, joined(worker), stored(*hashes[:blocks]))
    stage.replica(settings=RoutingSettings(policy="kv", decode_weight_m=500))
    stage.route("busy", prompt(*range(100, 104)))
    event = stage.route("r", asked)
    assert event.worker == A
    with stage.recording(tmp_path / "log") as recording:
        (tried,) = recording.requests.attempts("r")
        on = decision_inputs(recording, tried, event, whole=True)
        found = {need.what: need for need in required_changes(counterfactual_of(on), on.ranked[1].candidate)}
        assert {"cached_blocks", "prefill_weight"} <= found.keys()
        said = runner_up(on, recording.names.worker)
        assert said is not None
        assert "more cached blocks there" in said.text
        for situation in Playback(recording, tried.seq, tried.seq + 1, gaps=Gaps()):
            view, request = situation.view, situation.request
            weight = round(found["prefill_weight"].would_be * MILLI)
            settings = msgspec.structs.replace(situation.settings, prefill_weight_m=weight)
            assert decide(view, request, settings, event.now_ms, event.seed).worker == B
            depth = int(found["cached_blocks"].would_be)
            view.state.index.store(WorkerId(B), "device", single(hashes[: depth - 1]))
            assert decide(view, request, situation.settings, event.now_ms, event.seed).worker == A
            view.state.index.store(WorkerId(B), "device", single(hashes[:depth]))
            assert decide(view, request, situation.settings, event.now_ms, event.seed).worker == B


@pytest.mark.parametrize("policy", POLICIES)
def test_probabilities_are_those_of_the_draw(policy: str) -> None:
    """Each candidate is drawn about as often as is said; without a draw nothing is said."""
    random = Random(6)
    it = some_case(random)
    for temperature in (0, 300, 2000):
        settings = RoutingSettings(policy=policy, temperature_m=temperature)
        scored = score(it.candidates, it.request, settings, it.stale)
        found = choice_probabilities([each.cost for each in scored], settings) or []
        likely = dict(zip([each.candidate.worker for each in scored], found, strict=False))
        if policy in {"round-robin", "session"} or (policy not in {"random", "power-of-two"} and not temperature):
            assert likely == {}
            continue
        drawn = [rank(scored, it.request, settings, 0, random.getrandbits(64))[0] for _ in range(4000)]
        assert sum(likely.values()) == pytest.approx(1)
        for worker, chance in likely.items():
            assert sum(each.candidate.worker == worker for each in drawn) / 4000 == pytest.approx(chance, abs=0.04)


def test_candidates_of_a_record_cost_what_was_recorded(tmp_path: Path) -> None:
    """What the record leaves out is filled in so that the rules give the same costs, and the same changes."""
    stage, random = Stage(), Random(7)
    for worker in (A, B, C):
        stage.say(KV, worker, joined(worker))
        stage.say(LOAD, worker, load(0))
    stage.replica(settings=RoutingSettings(policy="kv", pending_credit_m=700, host_credit_m=400, request_weight_m=300))
    for number in range(60):
        family = random.randrange(4) * 1000
        asked = prompt(*range(family, family + random.randrange(2, 30)))
        hashes = hashes_from_bytes(asked.hashes())
        tier = random.choice(["device", "device", "host"])
        stage.say(KV, random.choice([A, B, C]), stored(*hashes[: random.randrange(len(hashes))], tier=tier))
        stage.route(f"r{number}", asked, lag={KV: random.randrange(3)})
    with stage.recording(tmp_path / "log") as recording:
        for tried in recording.requests.between():
            event = routed_event(recording, tried)
            assert event is not None
            whole = decision_inputs(recording, tried, event, whole=True)
            told = decision_inputs(recording, tried, event, whole=False)
            assert (whole.again, told.again) == ("same", "not_made")
            assert [each.candidate.worker for each in told.ranked] == [each.candidate.worker for each in whole.ranked]
            assert (told.settings, told.local) == (whole.settings, whole.local)
            filled = [each.candidate for each in recorded_candidates(event, told.settings, told.local)]
            again = score(filled, told.request, told.settings, told.stale)
            assert [(each.cost, each.prefill_m) for each in again] == [
                (each.cost, each.prefill_m) for each in whole.ranked
            ]
            by_record, by_fold = (
                {
                    need.what: need.would_be
                    for need in required_changes(counterfactual_of(on), on.ranked[1].candidate)
                    if need.what != "prefill_tokens"
                }
                for on in (told, whole)
            )
            if all(len(set(each.candidate.overlap)) == 1 and not each.candidate.pending for each in whole.ranked):
                assert by_record == by_fold
