"""A small trace for tests, in Mooncake's format: talks whose prompts grow, some of which begin alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PART_TOKENS = 512


def talks(count: int = 12, turns: int = 5, every_ms: int = 400) -> list[dict[str, Any]]:
    """One request per talk and turn, in the order of time. Every third talk begins with the same system prompt; each
    turn keeps what came before, fills its last part up, and adds one or two."""
    lines, next_id = [], 1
    seen: list[list[int]] = [[] for _ in range(count)]
    for turn in range(turns):
        for talk in range(count):
            if not turn and not talk % 3:
                seen[talk].append(0)
            for _ in range(1 + (talk + turn) % 2):
                seen[talk].append(next_id)
                next_id += 1
            last = next_id  # the part at the end is never whole: the next turn has another in its place
            next_id += 1
            lines.append(
                {
                    "timestamp": (turn * count + talk) * every_ms,
                    "input_length": len(seen[talk]) * PART_TOKENS + 100 + 10 * talk,
                    "output_length": 5 + (talk * 7 + turn * 3) % 40,
                    "hash_ids": [*seen[talk], last],
                }
            )
    return lines


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    """The trace stands in the file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
