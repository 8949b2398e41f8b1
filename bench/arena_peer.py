"""One fleet in Dynamo's offline simulator: a program for an environment that has `ai-dynamo`.

Its argument is JSON. With a `mode` Dynamo's own planner sizes the fleet. With a `period_s` each tick is a line of JSON
on standard output, and the answer, a number of workers, a line on standard input. A tick has the samples since the one
before under `samples`. The last line is the summary.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import tempfile
import types
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PART_TOKENS = 512
"""Of the trace."""
DEVICES_MAX = 48
THROUGHPUT_EVERY_S = 60
"""Interval of Dynamo's throughput loop: a day passes in three hours, so its default of 180 s would be 24 minutes."""


SAMPLE_MS = 20.0
"""Interval of samples: few have more than one arrival or one end, so their means are those of requests."""


class ExactProfile:
    """Times of Dynamo's mock engine, in the interface of a package that is on the vendor's own index only."""

    @classmethod
    def best_available(cls, _config: Any) -> ExactProfile:
        return cls()

    @staticmethod
    def normalize_config(config: Any) -> Any:
        return config

    def tune_with_fpms(self, _passes: Any) -> None:
        """An exact profile learns nothing."""

    def diagnostics(self) -> dict[str, Any]:
        return {"readiness": "ready", "source": "exact", "retained_observations": 64}

    def estimate_forward_pass_time_ms(self, ranks: list[dict[str, Any]]) -> float:
        """The slowest rank's pass."""
        return max((_pass_ms(rank.get("scheduled_requests") or {}) for rank in ranks), default=0.0)


def _pass_ms(scheduled: dict[str, Any]) -> float:
    prompt, context = scheduled.get("sum_prefill_tokens") or 0, scheduled.get("sum_decode_kv_tokens") or 0
    found = 4.209989e-07 * prompt * prompt + 1.518344e-02 * prompt + 16.50142 if prompt else 0.0
    if scheduled.get("num_decode_requests") or context:
        share = min(1.0, context / 1048576)
        found += max(5.74, -25.74 * share * share + 54.01 * share + 5.74)
    return found


@dataclass
class ProfileConfig:
    """Settings of the missing package, which an exact profile does not read."""

    model: str = ""
    system: str = ""
    backend: str = ""
    worker_type: str = ""
    estimation_mode: str = ""
    kv_block_size: int | None = None
    nextn: int = 0
    speculation: Any = None
    attention_dp_size: int | None = None
    tp: int = 1
    pp: int = 1
    estimator_config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_legacy_engine_config(cls, *_: Any, **__: Any) -> ProfileConfig:
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Asking:
    """A policy of the simulator that asks our process."""

    def __init__(self, period_s: float) -> None:
        self._period_ms = period_s * 1000
        self._ticks = 1
        self._samples: list[dict[str, Any]] = []

    def initial_tick_ms(self) -> float:
        return self._period_ms

    def on_sample(self, sample: dict[str, Any]) -> None:
        """The next tick has the sample, if a request came or ended in it."""
        traffic = sample["traffic"]
        if traffic["arriving_requests"] or traffic["completed_requests"]:
            self._samples.append(traffic)

    def on_tick(self, tick: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps({**tick, "samples": self._samples}), flush=True)
        self._samples = []
        target = int(sys.stdin.readline())
        self._ticks += 1
        changed = target != tick["non_draining_decode_count"]
        return {
            "target_prefill": None,
            "target_decode": target if changed else None,
            "next_tick_ms": self._period_ms * self._ticks,
        }


def main() -> None:
    asked = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        trace = asked["trace"]
        if asked["first"]:
            lines = Path(trace).read_text().splitlines(keepends=True)[: asked["first"]]
            trace = str(Path(folder, "trace.jsonl"))
            Path(trace).write_text("".join(lines))
        found = _run(asked, trace)
    print(json.dumps({"summary": dict(found.summary)}), flush=True)


def _run(asked: dict[str, Any], trace: str) -> Any:
    options: dict[str, Any] = {
        "extra_engine_args": {
            "engine": {"block_size": asked["block_size"], "num_gpu_blocks": asked["blocks"]},
            "num_gpu_blocks_is_explicit": True,
            "startup_time": asked["startup_s"],
        },
        "num_workers": asked["workers"],
        "router_mode": "kv_router",
        "trace_block_size": PART_TOKENS,
        "sla_ttft_ms": float(asked["ttft_ms"]),
        "sla_itl_ms": float(asked["itl_ms"]),
    }
    if asked["mode"]:
        _stand_in()
        logging.disable(logging.CRITICAL)
        replay = importlib.import_module("dynamo.replay")
        return replay.run_trace_replay(trace, planner_config=_planner(asked), **options)
    if asked["period_s"]:
        policy = Asking(asked["period_s"])
        options |= {
            "scaling_policy": policy,
            "capture_telemetry": True,
            "telemetry_sample_interval_ms": SAMPLE_MS,
            "telemetry_callback": policy.on_sample,
        }
    return importlib.import_module("dynamo._core").run_mocker_trace_replay([trace], **options)


def _planner(asked: dict[str, Any]) -> dict[str, Any]:
    loop, _, forecast = asked["mode"].partition(":")
    return {
        "mode": "agg",
        "backend": "mocker",
        "optimization_target": "sla",
        "max_gpu_budget": DEVICES_MAX,
        "decode_engine_num_gpu": 1,
        "prefill_engine_num_gpu": 1,
        "report_interval_hours": None,
        "live_dashboard_port": 0,
        "control_api_port": 0,
        "ttft_ms": asked["ttft_ms"] * asked["bounds_share"],
        "itl_ms": asked["itl_ms"] * asked["bounds_share"],
        "throughput_adjustment_interval_seconds": THROUGHPUT_EVERY_S,
        "enable_load_scaling": loop in {"load", "both"},
        "enable_throughput_scaling": loop in {"thr", "both"},
        "load_predictor": forecast,
    }


def _stand_in() -> None:
    """The package that Dynamo's planner imports for its profiles is there, with an exact profile."""
    modules: dict[str, dict[str, Any]] = {
        "aisimulate": {},
        "aisimulate.runner": {"canonical_performance_config": _refused},
        "aisimulate_core": {},
        "aisimulate_core._native": {"RustForwardPassPerfModel": ExactProfile},
        "aisimulate_core.sdk": {
            "RustForwardPassPerfModel": ExactProfile,
            "ForwardPassPerfModelConfig": ProfileConfig,
        },
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content, __path__=[])
        sys.modules[name] = module


def _refused(*_: Any, **__: Any) -> Any:
    raise RuntimeError("the profile is exact, and made from no configuration")


if __name__ == "__main__":
    main()
