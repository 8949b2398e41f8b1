"""The text that Prometheus reads from a front end."""

from __future__ import annotations

from prometheus_client import generate_latest

from actors.metrics.frontend_metrics import FrontendMetrics


def test_each_count_stands_under_its_name_and_label() -> None:
    """Counters end in `_total`; a histogram has its buckets, its sum and its count."""
    metrics = FrontendMetrics()
    model = metrics.of_model("m")
    model.finished("length", 0.02)
    model.first_token_seconds.observe(0.004)
    model.inter_token_seconds.observe(0.0005)
    model.prompt_tokens += 100
    model.cached_tokens += 80
    model.completion_tokens += 7
    metrics.rejected("rejected")
    metrics.decided("kv", 0.0002)
    lines = generate_latest(metrics.registry).decode().splitlines()
    for line in (
        'contrail_requests_total{model="m",outcome="length"} 1.0',
        'contrail_requests_total{model="",outcome="rejected"} 1.0',
        'contrail_request_seconds_bucket{le="0.01",model="m"} 0.0',
        'contrail_request_seconds_bucket{le="0.025",model="m"} 1.0',
        'contrail_request_seconds_count{model="m"} 1.0',
        'contrail_request_seconds_sum{model="m"} 0.02',
        'contrail_time_to_first_token_seconds_bucket{le="0.005",model="m"} 1.0',
        'contrail_time_to_first_token_seconds_bucket{le="+Inf",model="m"} 1.0',
        'contrail_inter_token_seconds_bucket{le="0.001",model="m"} 1.0',
        'contrail_prompt_tokens_total{model="m"} 100.0',
        'contrail_cached_tokens_total{model="m"} 80.0',
        'contrail_completion_tokens_total{model="m"} 7.0',
        'contrail_decision_seconds_bucket{le="0.0001",policy="kv"} 0.0',
        'contrail_decision_seconds_bucket{le="0.00025",policy="kv"} 1.0',
    ):
        assert line in lines, line


def test_an_outcome_that_nobody_foresaw_counts() -> None:
    """An engine may end a generation for a reason of its own."""
    metrics = FrontendMetrics()
    metrics.of_model("m").finished("content_filter", 1.0)
    metrics.rejected("teapot")
    value = metrics.registry.get_sample_value
    assert value("contrail_requests_total", {"model": "m", "outcome": "content_filter"}) == 1
    assert value("contrail_requests_total", {"model": "", "outcome": "teapot"}) == 1
