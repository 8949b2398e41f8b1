"""Which of the programs' requests the suite keeps, and where."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents import script
from tests.agents.conversation import Conversation
from tests.agents.recorder import Exchange
from tests.agents.reduction import Reduction

FOLDER = Path(__file__).parents[1] / "fixtures" / "agents"
FILE_BYTES_MAX = 60_000


def keep(test: str, conversation: Conversation) -> None:
    """Those of this test are in FOLDER, without texts that are not ours; of most tests none."""
    program, turns = conversation.program, conversation.turns
    posts = conversation.recorder.posts(program.route)
    chosen: dict[str, Exchange | None] = {}
    match test:
        case "test_loop":
            chosen = {f"turn{number}": turn for number, turn in enumerate(turns, 1)}
        case "test_question":
            chosen = {"aside": next((post for post in posts if post not in turns), None)}
        case "test_delegation" if program.has_tools:
            chosen = {"agent": conversation.asking(script.task(program.name)), "delegated": turns[-1]}
        case "test_full_context":
            chosen = {"summary": next((post for post in posts if program.compacted(post.body)), None)}
        case "test_tool_search":
            chosen = {"search": turns[1]}
    reduction = Reduction()
    FOLDER.mkdir(exist_ok=True)
    for name, exchange in chosen.items():
        if exchange is None:
            continue
        kept = reduction.request(exchange.method, exchange.path, exchange.headers, exchange.body)
        text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
        assert len(text.encode()) < FILE_BYTES_MAX, f"{program} {name}: {len(text)} characters"
        (FOLDER / f"{program}_{name}.json").write_text(text)
