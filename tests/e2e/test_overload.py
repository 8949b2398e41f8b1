"""More than a deployment has places for, as its clients and operators see it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from pathlib import Path

import httpx

from core.events.routing import RequestQueued, RequestTurnedAway
from tests.e2e.deployment import Running, contrail, up
from tests.fixtures.eventually import eventually

ENGINE = {"max_seqs": 2, "decode_us_per_step": 20_000, "eos_every": 0}
AT_ONCE = 12


async def test_too_much_is_queued_refused_and_told(tmp_path: Path) -> None:
    """Places and queue are filled, the rest is refused with a time to come again; settings change that while it runs,
    and the log, `explain` and the metrics tell it."""
    file = tmp_path / "small.yaml"
    group = {"name": "decode", "model": "tiny", "count": 1, "engine": "simulated", "engine_args": ENGINE}
    file.write_text(json.dumps({"version": 1, "workers": [group], "routing": {"active_max": 2, "queue_max": 4}}))
    async with up(tmp_path / "data", "-f", str(file)) as running, httpx.AsyncClient(base_url=running.url) as http:
        answers = await asyncio.gather(*(_ask(http, number) for number in range(AT_ONCE)))
        counts = Counter(answer.status_code for answer in answers)
        assert counts[200] == 6
        assert counts[429] + counts[503] == 6
        for answer in answers:
            if answer.status_code != 200:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.json()["error"]["code"] in {"overloaded", "rate_limit_exceeded"}
        await _told(running)
        changed = await asyncio.to_thread(contrail, "settings", "set", "queue_max", "64", "--data", str(running.data))
        assert changed.returncode == 0, changed.stderr
        again = await asyncio.gather(*(_ask(http, number) for number in range(AT_ONCE)))
        assert Counter(answer.status_code for answer in again) == {200: AT_ONCE}


async def _ask(http: httpx.AsyncClient, number: int) -> httpx.Response:
    body = {"model": "tiny", "prompt": [20 + number] * 40, "max_tokens": 10, "temperature": 0}
    return await http.post(
        "/v1/completions", json=body, headers={"x-contrail-tenant": f"tenant-{number % 2}"}, timeout=60
    )


async def _told(running: Running) -> None:
    await eventually(lambda: not running.state("frontend-0")["ahead"], "all of it is in the log")
    events = await running.events("routing")
    queued = [event for event in events if isinstance(event, RequestQueued)]
    assert len(queued) >= 4
    away = [event for event in events if isinstance(event, RequestTurnedAway)]
    assert len(away) == 6
    refused = await asyncio.to_thread(contrail, "explain", away[0].request, "--data", str(running.data))
    assert f"rejected with {away[0].status}" in refused.stdout
    assert running.state("frontend-0")["admission"]["waiting"] == 0
    with urllib.request.urlopen(f"http://{running.part('frontend-0')['ops']}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert 'contrail_queue_wait_seconds_count{model="tiny"} 4.0' in metrics
    lines = [line for line in metrics.splitlines() if line.startswith("contrail_requests_turned_away_total{")]
    assert sum(float(line.split()[-1]) for line in lines) == 6
