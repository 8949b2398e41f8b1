"""What a line knows of its requests: their work, their waits, its bounds; the places of workers; and the metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from actors.metrics.replica_metrics import WAIT_MS, queue_metrics
from actors.prompt_cache.digest_store import DigestStore
from actors.prompt_cache.hash_columns import HashColumns
from actors.router.answer_progress import AnswerProgress
from actors.router.capacity import UNBOUNDED, Capacity
from actors.router.request_queue import RETRY_AFTER_MAX_S, RequestQueue
from actors.router.routed_request import RoutedRequest
from actors.router.scheduler_counts import QueueCounts
from core.ids import RequestId
from core.settings import RoutingSettings
from tests.actors.world import request


def of_length(prompt_tokens: int, answer_max: int) -> RoutedRequest:
    answer = AnswerProgress(request([], 1), 4096, 4, HashColumns(DigestStore(), 0))
    name = RequestId("r")
    return RoutedRequest(id=name, model="sim", prompt_tokens=prompt_tokens, answer_max=answer_max, answer=answer)


def test_work_is_prompt_and_a_usual_answer() -> None:
    """Who may get a longer answer than others got is not taken to need it; an embedding has no answer."""
    queue = RequestQueue("sim")
    assert queue.work(of_length(100, 20)) == 120
    assert queue.work(of_length(100, 4000)) == 356
    for _ in range(200):
        queue.learn(1000, 40)
    assert queue.work(of_length(100, 4000)) == 140
    assert queue.work(of_length(100, 0)) == 100
    assert queue.work(of_length(0, 1)) == 1


def test_when_to_come_again_is_bounded() -> None:
    """By the rate at which requests end; a second before anything is known, never more than a minute."""
    queue, settings = RequestQueue("sim"), RoutingSettings(queue_max=100, queue_wait_max_ms=5000)
    for number in range(50):
        queue.fair_queue.push(of_length(9, 1), 0, str(number % 3), 10)
    assert (queue.retry_after_s(), queue.waiting_max(settings)) == (1, 100)
    for _ in range(4):
        queue.occupy_slot("a")
    queue.learn(400, 10)  # four at once, 0.4 s each: ten a second
    assert (queue.retry_after_s(), queue.waiting_max(settings)) == (5, 50)
    for _ in range(100):
        queue.learn(100_000, 10)
    assert queue.retry_after_s() == RETRY_AFTER_MAX_S
    assert queue.waiting_max(settings) == 1


@pytest.mark.parametrize(
    ("room", "own", "coming", "free"),
    [
        (Capacity(8, 0, 1, overloaded=False), 0, 0, 8),
        (Capacity(8, 7, 1, overloaded=False), 7, 0, 1),
        (Capacity(8, 5, 1, overloaded=False), 7, 2, 1),
        (Capacity(8, 0, 1, overloaded=False), 8, 0, 0),  # places that are held and not used are taken
        (Capacity(8, 8, 2, overloaded=False), 0, 0, 4),  # another replica has them all: our half is ours
        (Capacity(8, 2, 2, overloaded=False), 2, 0, 6),  # nobody else wants any
        (Capacity(8, 12, 2, overloaded=False), 6, 0, 0),
        (Capacity(3, 9, 8, overloaded=False), 0, 0, 1),  # a part is one place at least
        (Capacity(0, 0, 1, overloaded=True), 3, 0, 0),
        (Capacity(UNBOUNDED, 10**6, 3, overloaded=False), 10**6, 0, UNBOUNDED - 10**6),
    ],
)
def test_free_places(room: Capacity, own: int, coming: int, free: int) -> None:
    """What is seen free, and each replica's part whatever is seen."""
    assert room.free(own, coming) == free


def test_metrics_are_those_of_the_description() -> None:
    """Waits are counted up to their bounds, in seconds; tenants and reasons are labels."""
    counts = QueueCounts()
    for waited_ms in (0, WAIT_MS[0], 1001, 10**6):
        counts.on_admitted("sim", waited_ms)
    counts.on_turned_away("sim", "tenant_share")
    about = {
        "models": [{"model": "sim", "active": 3, "waiting": 2}],
        "tenants": [{"model": "sim", "tenant": "acme", "active": 3}],
        **counts.describe(),
    }

    class Described(Collector):
        def collect(self) -> Iterator[Metric]:
            return queue_metrics(about)

    registry = CollectorRegistry()
    registry.register(Described())
    sample = registry.get_sample_value
    wait = "contrail_queue_wait_seconds"
    assert [sample(f"{wait}_bucket", {"model": "sim", "le": le}) for le in ("0.001", "1.0", "2.5", "+Inf")] == [
        2,
        2,
        3,
        4,
    ]
    assert sample(f"{wait}_sum", {"model": "sim"}) == pytest.approx(1001.002)
    assert sample("contrail_requests_waiting", {"model": "sim"}) == 2
    assert sample("contrail_tenant_requests_active", {"model": "sim", "tenant": "acme"}) == 3
    assert sample("contrail_requests_turned_away_total", {"model": "sim", "reason": "tenant_share"}) == 1
