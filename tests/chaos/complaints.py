"""What the parts said at level ERROR and above, counted: not a verdict, but where to look first."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

LEVELS = {"ERROR", "CRITICAL"}
SHOWN_MAX = 15
LINE_MAX = 200


def complaints(logs: Path) -> Counter[str]:
    """Messages with ids and numbers taken out, by how often they came; a traceback counts by its last line."""
    found: Counter[str] = Counter()
    for path in sorted(logs.glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            text = _complaint(line)
            if text is not None:
                found[f"{path.stem.rpartition('-')[0] or path.stem}: {text}"] += 1
    return found


def _complaint(line: str) -> str | None:
    """The line's text if it complains."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or str(said.get("level", "")).upper() not in LEVELS:
        return None
    trace = str(said.get("exception") or said.get("traceback") or "").strip().splitlines()
    text = f"{said.get('message', '')} {trace[-1] if trace else ''}"
    return re.sub(r"[0-9a-f]{16}|\d+", "#", text)[:LINE_MAX].strip()
