"""The learned duration of prefills beside the prefills of a log made by hand, in which it is right or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from core.events import BlocksStored, RequestPrefilled
from core.events.routing import PROGRESS_VERSION
from core.subjects import LOAD
from projections.policy.prefill_time import PrefillTime, PrefillTimeSample
from replay.explain import price_check
from replay.explain.price_check import APART_MIN_US, SAMPLES_MIN, check_prices, line_of, price_settings
from replay.recording.recording import Recording
from replay.whatif.scenario import Scenario
from replay.whatif.whatif import what_if
from tests.projections.facts import joined, load, prompt
from tests.replay.priced import LOW, TRUE, WRONG, PricedStage
from tests.replay.staged import KEY, KV, A, B


@pytest.fixture
def scene() -> PricedStage:
    return PricedStage()


@pytest.mark.parametrize("staged", [True, False])
def test_a_right_line_is_in_range(scene: PricedStage, tmp_path: Path, *, staged: bool) -> None:
    """By the records of the worker, and by first tokens in whole milliseconds."""
    for _ in range(20):
        scene.ask(TRUE, staged=staged)
    found = scene.only(tmp_path)
    assert (found.model, found.decisions, found.samples, found.known, found.in_range) == ("tiny", 20, 20, True, True)
    assert found.factor == pytest.approx(1, abs=0.1)
    assert (found.shown, found.beyond, found.cost) == (None, 0, None)


@pytest.mark.parametrize("staged", [True, False])
def test_a_wrong_line_is_named_with_the_true_one(scene: PricedStage, tmp_path: Path, *, staged: bool) -> None:
    """The samples show the price of a token, and decisions under a right line are not among those beyond it."""
    for number in range(20):
        scene.ask(WRONG if number else TRUE, staged=staged)
    found = scene.only(tmp_path)
    assert (found.in_range, found.decisions, found.beyond) == (False, 20, 19)
    assert found.factor == pytest.approx(WRONG.us(301) / TRUE.us(301), rel=0.1)
    assert found.shown is not None
    assert found.shown.per_token_m == pytest.approx(TRUE.per_token_m, rel=0.1)
    assert found.cost is not None
    assert found.cost.decisions == 20


def test_the_cost_of_a_line_that_is_far_too_low(scene: PricedStage, tmp_path: Path) -> None:
    """It is that of `what-if` with the line that the samples show."""
    scene.wait_behind_long_prompts()
    found = scene.only(tmp_path)
    assert (found.decisions, found.samples, found.in_range) == (60, 20, False)
    assert found.cost is not None
    assert found.cost.changed >= 20
    assert found.cost.is_timed
    assert found.cost.ttft_change_ms < -5
    with Recording.open(tmp_path / "log", KEY) as recording:
        assert found.shown is not None
        settings = price_settings(found.shown)
        assert settings is not None
        (outcome,) = what_if(recording, [Scenario.parse(settings)])
        (uncosted,) = check_prices(recording, costs=False)
    assert uncosted == replace(found, cost=None)
    assert outcome.changed == found.cost.changed
    assert found.cost.ttft_change_ms == pytest.approx(outcome.ttft_new_ms - outcome.ttft_recorded_ms)


@pytest.mark.parametrize(("most", "made"), [(60, 60), (59, 59), (10, 10)])
def test_the_cost_is_that_of_the_newest_decisions(
    scene: PricedStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, made: int
) -> None:
    monkeypatch.setattr(price_check, "COST_DECISIONS_MAX", most)
    scene.wait_behind_long_prompts()
    found = scene.only(tmp_path)
    assert found.cost is not None
    assert (found.decisions, found.cost.decisions) == (60, made)


def test_a_line_that_is_far_too_low_is_wrong(scene: PricedStage, tmp_path: Path) -> None:
    for _ in range(20):
        scene.ask(LOW, 800)
    found = scene.only(tmp_path)
    assert (found.in_range, found.beyond) == (False, 20)
    assert found.factor < 0.1


@pytest.mark.parametrize(("samples", "known"), [(SAMPLES_MIN, True), (SAMPLES_MIN - 1, False)])
def test_fewer_samples_say_nothing(scene: PricedStage, tmp_path: Path, samples: int, *, known: bool) -> None:
    for _ in range(samples):
        scene.ask(WRONG)
    found = scene.only(tmp_path)
    assert (found.decisions, found.samples, found.known, found.in_range) == (samples, samples, known, not known)


@pytest.mark.parametrize(
    ("per_token_m", "us", "in_range"),
    [
        pytest.param(40_000, 20_100, True, id="twice the time"),
        pytest.param(40_100, 20_100, False, id="above twice the time"),
        pytest.param(40_000, 80_400, True, id="half of the time"),
        pytest.param(40_000, 80_500, False, id="below half of the time"),
    ],
)
def test_the_factor_has_two_bounds(
    scene: PricedStage, tmp_path: Path, per_token_m: int, us: int, *, in_range: bool
) -> None:
    """1 005 tokens that are taken to last 40.2 ms or a little longer."""
    for _ in range(20):
        scene.ask(PrefillTime(0, per_token_m), 251, us=us)
    assert scene.only(tmp_path).in_range is in_range


@pytest.mark.parametrize(("more_us", "in_range"), [(0, True), (1, False)])
def test_short_prefills_may_differ_by_any_factor(
    scene: PricedStage, tmp_path: Path, more_us: int, *, in_range: bool
) -> None:
    """Up to APART_MIN_US in the median."""
    for _ in range(20):
        scene.ask(PrefillTime(100 + APART_MIN_US + more_us, 0), 10, us=100)
    found = scene.only(tmp_path)
    assert found.in_range is in_range
    assert found.factor > 100


@pytest.mark.parametrize(("right", "in_range"), [(20, True), (19, False)])
def test_half_of_the_decisions_may_be_beyond(scene: PricedStage, tmp_path: Path, right: int, *, in_range: bool) -> None:
    """At all tokens of their prompts. All lines have a base that is far too long for the short prefills that are
    samples, but with long prompts only the wrong ones are beyond the line that the samples show."""
    base = PrefillTime(TRUE.base_us + 30_000, TRUE.per_token_m)
    for _ in range(20):
        scene.ask(base, 10, us=1_000)
        scene.ask(base, 100, us=TRUE.us(401))
    scene.ask(base, 10, us=1_000)
    found = scene.only(tmp_path)
    assert (found.near, found.decisions, found.beyond, found.in_range) == (False, 41, 41, False)
    for number in range(41 - (20 - right)):
        long = scene.prompt(1_500)
        scene.stage.tell(replace(scene.stage.decided(f"long-{number}", long, time=base), worker=A))
    (tmp_path / "more").mkdir()
    found = scene.only(tmp_path / "more")
    assert (found.near, found.beyond, found.decisions) == (False, 41, 82 - (20 - right))
    assert found.in_range is in_range


def test_equal_prompts_show_a_price(scene: PricedStage, tmp_path: Path) -> None:
    """Then all of the time is that of the tokens; prompts that take equally long show none, and no cost."""
    for _ in range(20):
        scene.ask(WRONG, 100)
    found = scene.only(tmp_path)
    assert found.shown == PrefillTime(0, TRUE.us(401) // 100 * 100 * 1000 // 401)
    flat = PricedStage()
    for _ in range(20):
        flat.ask(WRONG, us=5_000)
    (tmp_path / "flat").mkdir()
    found = flat.only(tmp_path / "flat")
    assert (found.in_range, found.shown, found.cost) == (False, None, None)


def test_a_price_beyond_all_settings_has_no_cost(scene: PricedStage, tmp_path: Path) -> None:
    for _ in range(20):
        scene.ask(PrefillTime(0, 20_000), 10, us=90_000)
    found = scene.only(tmp_path)
    assert found.shown is not None
    assert (found.shown.per_token_m > 1_000_000, found.cost) == (True, None)


def test_decisions_without_a_learned_line_do_not_count(scene: PricedStage, tmp_path: Path) -> None:
    for _ in range(20):
        scene.ask(None)
    assert scene.checked(tmp_path) == []


def test_prefills_of_other_workers_are_no_samples(scene: PricedStage, tmp_path: Path) -> None:
    for _ in range(20):
        scene.ask(WRONG, remote=True)
    assert scene.only(tmp_path).samples == 0


def test_loads_are_no_samples(scene: PricedStage, tmp_path: Path) -> None:
    """Blocks that come from a slower tier take time that no computed token explains."""
    for number in range(1, 21):
        known = prompt(*(1000 * number + block for block in range(50)))
        scene.stage.say(KV, A, BlocksStored(hashes=known.hashes(), tier="host"))
        scene.ask(WRONG, 50)
    assert scene.only(tmp_path).samples == 0


def test_attempts_beside_others_are_no_samples(tmp_path: Path) -> None:
    """One that is under way before it, and one that comes before its first token; behind that, it stays a sample."""
    scene = PricedStage()
    first, second, third = (scene.prompt(50) for _ in range(3))
    for worker, name, asked in ((A, "one", first), (A, "two", second), (B, "alone", third)):
        scene.stage.tell(replace(scene.stage.decided(name, asked, time=WRONG), worker=worker))
    scene.stage.clock.advance(9)
    scene.answer("one", first, 8_000)
    scene.stage.tell(
        RequestPrefilled(request="alone", attempt=0, cached_tokens=0, ttft_ms=9, v=PROGRESS_VERSION),
        replace(scene.stage.decided("later", scene.prompt(50), time=WRONG), worker=B),
    )
    scene.answer("two", second, 8_000)
    found = scene.only(tmp_path)
    assert (found.decisions, found.samples) == (4, 1)


@pytest.mark.parametrize(("lone", "alone"), [(SAMPLES_MIN, True), (SAMPLES_MIN - 1, False)])
def test_a_busy_fleet_is_judged_beside_answers(scene: PricedStage, tmp_path: Path, lone: int, *, alone: bool) -> None:
    """Where too few prefills were alone, those count that had only answers under way beside them."""
    for _ in range(lone - 2):
        scene.ask(TRUE)
    for worker in (A, B):  # alone themselves, up to their first tokens
        asked = scene.prompt(50)
        scene.stage.tell(replace(scene.stage.decided(f"long-{worker}", asked, time=TRUE), worker=worker))
        first = RequestPrefilled(request=f"long-{worker}", attempt=0, cached_tokens=0, ttft_ms=6, v=PROGRESS_VERSION)
        scene.stage.clock.advance(6)
        scene.stage.tell(first)
    for _ in range(20):
        scene.ask(TRUE)
    found = scene.only(tmp_path)
    assert (found.alone, found.samples, found.in_range) == (alone, lone if alone else lone + 20, True)


def test_requests_from_before_the_recording_are_beside_it(tmp_path: Path) -> None:
    """The snapshot knows them, and so does the decision; the attempts of the recording do not name them."""
    scene = PricedStage()
    for worker, name in ((A, "old-a"), (B, "old-b")):
        scene.stage.tell(replace(scene.stage.decided(name, scene.prompt(50), time=WRONG), worker=worker))
    snapshot = scene.stage.snapshot()
    for _ in range(20):
        scene.ask(WRONG)
    with scene.stage.recording(tmp_path / "log", snapshot=snapshot) as recording:
        (found,) = check_prices(recording)
    assert (found.decisions, found.samples) == (20, 0)


def test_each_model_has_its_own_line(scene: PricedStage, tmp_path: Path) -> None:
    """The cost is that of the changes of one model."""
    scene.stage.say(KV, "0" * 15 + "4", joined("large", model="large"))
    scene.stage.say(LOAD, "0" * 15 + "4", load())
    for _ in range(20):
        scene.ask(TRUE)
        scene.ask(WRONG, model="large")
    large, tiny = scene.checked(tmp_path)
    assert (large.model, large.in_range, large.beyond) == ("large", False, 20)
    assert (tiny.model, tiny.in_range, tiny.beyond) == ("tiny", True, 0)
    assert large.cost is not None
    assert (large.cost.decisions, large.cost.changed, large.cost.ttft_change_ms) == (40, 0, 0.0)


def test_the_samples_of_a_range(scene: PricedStage, tmp_path: Path) -> None:
    """Attempts before it are known, and are no samples."""
    for _ in range(20):
        scene.ask(WRONG)
    start = len(scene.stage.frames["routing"]) + 1  # type: ignore[index]
    for _ in range(17):
        scene.ask(TRUE)
    (found,) = scene.checked(tmp_path, start)
    assert (found.decisions, found.samples, found.in_range) == (17, 17, True)


def test_a_line_does_not_depend_on_the_order() -> None:
    samples = [PrefillTimeSample(tokens, TRUE.us(tokens)) for tokens in range(100, 2_100, 50)]
    assert line_of(samples) == line_of(samples[::-1]) == TRUE
