"""The deployment that the programs are tried against: simulated models with scripted replies, in one `contrail up`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.agents.script import Reply, thinking
from tests.e2e.deployment import Running, up

TEMPLATE = Path(__file__).parents[1] / "api" / "templates" / "qwen3.jinja"
CONTEXT = 131_072
SMALL_CONTEXT = 65_536
"""Room for a program's own prompt and a few turns."""
BLOCK = 32
PLAIN = "I have nothing to say to that."
"""What a model says where no reply fits."""

QUICK, SLOW, SMALL = "quick", "slow", "small"


def _engine(replies: Sequence[Reply], **more: Any) -> dict[str, Any]:
    return {
        "context_max": CONTEXT,
        "block_size": BLOCK,
        "capacity_blocks": 4 * CONTEXT // BLOCK,
        "prefill_us_per_token": 5,
        "replies": [*replies, thinking("What was that?", PLAIN)],
        **more,
    }


def deployment(replies: Sequence[Reply]) -> dict[str, Any]:
    """Three models that say the same: quickly on two workers, slowly, and with little room."""
    kinds: dict[str, dict[str, Any]] = {
        QUICK: _engine(replies, decode_us_per_step=200),
        SLOW: _engine(replies, decode_us_per_step=15_000),
        SMALL: _engine(replies, decode_us_per_step=200, context_max=SMALL_CONTEXT),
    }
    groups = [
        {
            "name": name,
            "served_name": [name, "claude-*", "gpt-*"] if name == QUICK else name,
            "count": 2 if name == QUICK else 1,
            "engine": "simulated",
            "tool_call_parser": "hermes",
            "reasoning_parser": "qwen3",
            "chat_template": str(TEMPLATE),
            "engine_args": arguments,
        }
        for name, arguments in kinds.items()
    ]
    return {"version": 1, "workers": groups}


@asynccontextmanager
async def running(folder: Path, replies: Sequence[Reply]) -> AsyncIterator[Running]:
    """The deployment, ready; nothing of it is left."""
    file = folder / "agents.yaml"
    file.write_text(json.dumps(deployment(replies)))
    async with up(folder / "data", "-f", str(file)) as it:
        yield it
