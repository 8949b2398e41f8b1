"""One trace through Dynamo's offline replay: a program for an environment that has `ai-dynamo`; results as JSON lines.

Its argument is JSON: the trace file, workers, speed-up, block size, blocks per worker, and the modes that are wanted:
`round_robin`, or settings of its KV router. Engines are its mockers, in simulated time.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

replay: Any = importlib.import_module("dynamo.replay")
core: Any = importlib.import_module("dynamo._core")

PART_TOKENS = 512
"""Of the trace."""


def main() -> None:
    asked = json.loads(sys.argv[1])
    rank = {"block_size": asked["block_size"], "num_gpu_blocks": asked["blocks"]}
    for mode in asked["modes"]:
        routed = mode == "round_robin"
        kind = {"router_mode": mode} if routed else {"router_mode": "kv_router", "router_config": config(mode)}
        found = replay.run_trace_replay(
            asked["trace"],
            extra_engine_args={"engine": rank, "num_gpu_blocks_is_explicit": True},
            num_workers=asked["workers"],
            trace_block_size=PART_TOKENS,
            arrival_speedup_ratio=asked["speed_up"],
            **kind,
        )
        print(json.dumps(dict(found.summary)), flush=True)


def config(settings: dict[str, float]) -> Any:
    return core.KvRouterConfig(**settings)


if __name__ == "__main__":
    main()
