"""What Claude Code alone does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.agents import script
from tests.agents.conversation import Conversation
from tests.agents.installed import FOLDER
from tests.agents.programs import ClaudeCode
from tests.agents.recorder import recording
from tests.e2e.deployment import Running


@pytest_asyncio.fixture
async def claude(deployment: Running, tmp_path: Path) -> AsyncIterator[Conversation]:
    port = int(deployment.url.rpartition(":")[2])
    async with recording("127.0.0.1", port) as recorder:
        yield Conversation(deployment, ClaudeCode(FOLDER), recorder, tmp_path)


async def test_its_own_model_names(claude: Conversation) -> None:
    """Told of no model, it asks for its own by their names, and a pattern of names has them answered."""
    finished = await claude.ask(script.QUESTION, model="")
    assert finished.status == 0, finished
    assert script.ANSWER in claude.program.text(finished), finished
    assert {post.body["model"].partition("-")[0] for post in claude.recorder.posts(claude.program.route)} == {"claude"}
    assert {exchange.status for exchange in claude.recorder.exchanges} == {200}
