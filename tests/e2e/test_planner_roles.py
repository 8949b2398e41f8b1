"""Decode and prefill workers that a planner sizes together: `contrail up` on simulated engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from core.events import RequestPrefilled, ScaleApplied, ScaleDecided
from core.events.kv import DECODE, PREFILL
from core.events.scale import role_of
from core.subjects import ROUTING, SCALE
from tests.e2e.deployment import Running, contrail, up
from tests.e2e.test_planner import Load
from tests.fixtures.eventually import eventually

ENGINE = {"prefill_us_per_token": 400, "capacity_blocks": 4096, "max_seqs": 8, "decode_us_per_step": 40_000}
WORKERS = [
    {"engine": "simulated", "count": 1, "engine_args": ENGINE},
    {"engine": "simulated", "count": 1, "engine_args": ENGINE, "role": "prefill"},
]
DEVICES = 4
PLANNER = {
    "mode": "act",
    "slo": {"ttft_ms": 1000, "itl_ms": 100},
    "max": 3,
    "devices_max": DEVICES,
    "period_s": 1,
    "down_window_s": 5,
    "startup_s": 3,
    "prefill": {"down_window_s": 4},
}
ROUTING_SETTINGS = {"remote_prefill_min_tokens": 64, "prefill_queue_max": 100}
PROMPT_TOKENS, ANSWER_TOKENS = 1000, 50
"""Five such requests a second are the work of two prefill workers, and hold the slots of two decode workers. More of
both are sought than there are devices."""


def workers(running: Running) -> tuple[int, int]:
    """Decode and prefill workers that do not drain. One that drains has its device still."""
    run = running.run()
    roles = [part["role"] for part in run["parts"] if part["kind"] == "worker"]
    draining = sum(part["kind"] == "worker" for part in run["beside"])
    assert len(roles) + draining <= DEVICES
    return roles.count(DECODE), roles.count(PREFILL)


async def test_devices_change_their_role(tmp_path: Path) -> None:
    """Both roles grow under streams, and devices move from one to the other: each change is a drain and a start. No
    request fails. Every decision, division and period is made again from the log."""
    file = tmp_path / "roles.yaml"
    file.write_text(json.dumps({"version": 1, "workers": WORKERS, "planner": PLANNER, "routing": ROUTING_SETTINGS}))
    async with up(tmp_path / "data", "-f", str(file)) as running:
        data, load = ("--data", str(running.data)), Load(running, "tiny", PROMPT_TOKENS, ANSWER_TOKENS)
        under_load = asyncio.create_task(load.run(18))
        await eventually(lambda: workers(running) == (2, 2), "both grow", 20)
        changed = await asyncio.to_thread(contrail, "scale", "set", "--role", "prefill", "max", "1", *data)
        assert changed.stdout == "live: max 1\n", changed.stderr
        await eventually(lambda: workers(running) == (3, 1), "a device that changes its role", 20)
        await under_load
        state = running.state("planner-0")
        assert (state["group"], state["prefill"]["group"]) == ("decode", "prefill")
        refused = await asyncio.to_thread(contrail, "scale", "set", "--role", "prefill", "max", "4", *data)
        assert "planner.prefill.max: the deployment file allows 3 at most" in refused.stderr
        changed = await asyncio.to_thread(contrail, "scale", "set", "--role", "prefill", "max", "3", "min", "2", *data)
        assert changed.stdout == "live: max 3, min 2\n", changed.stderr
        await eventually(lambda: workers(running) == (1, 2), "the least of both roles", 30)

        assert not load.failed
        assert load.served > 40
        shown = await asyncio.to_thread(contrail, "scale", "--role", "prefill", *data)
        assert shown.stdout.splitlines()[1].endswith("prefill")
        explained = await asyncio.to_thread(contrail, "explain", "scale", "--role", "prefill", "--json", *data)
        assert json.loads(explained.stdout)["verdict"] == "equal", explained.stdout
        metrics, ready = f"http://{running.part('planner-0')['ops']}/metrics", 'role="prefill",state="ready"} 2.0'
        await eventually(lambda: f'contrail_planner_workers{{model="",{ready}' in httpx.get(metrics).text, "both", 20)

        verified = await asyncio.to_thread(contrail, "replay", "verify", *data, "--json")
        assert verified.returncode == 0, verified.stdout
        scale = json.loads(verified.stdout)["scale"]
        assert scale["decisions"] == scale["verified"] == 2 * scale["periods"] > 40
        assert scale["periods"] == scale["periods_verified"]
        events = await running.events(SCALE)
        decided = [event for event in events if isinstance(event, ScaleDecided)]
        for at_ms in {each.at_ms for each in decided}:
            assert sum(each.target for each in decided if each.at_ms == at_ms) <= DEVICES
        applied = {role_of(event) for event in events if isinstance(event, ScaleApplied)}
        assert applied == {DECODE, PREFILL}, "each group has a hand that answers"
        reports = [event.prefill for event in await running.events(ROUTING) if isinstance(event, RequestPrefilled)]
        pulled = [each for each in reports if each is not None and each.outcome == "pulled"]
        assert len(pulled) > load.served // 2
        assert all(each.compute_ms >= 300 for each in pulled), "the time of 1 000 tokens, but for other prompts' blocks"
