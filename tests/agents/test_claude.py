"""What Claude Code alone does."""

from __future__ import annotations

import pytest

from tests.agents import script
from tests.agents.conversation import Conversation
from tests.agents.programs import ClaudeCode

pytestmark = pytest.mark.parametrize("program", [ClaudeCode], ids=["claude"], indirect=True)


async def test_its_own_model_names(conversation: Conversation) -> None:
    """Told of no model, it asks for its own by their names, and a pattern of names has them answered."""
    finished = await conversation.ask(script.QUESTION, model="")
    assert finished.status == 0, finished
    assert script.ANSWER in conversation.program.text(finished), finished
    posts = conversation.recorder.posts(conversation.program.route)
    assert {post.body["model"].partition("-")[0] for post in posts} == {"claude"}
    assert {exchange.status for exchange in conversation.recorder.exchanges} == {200}


async def test_tool_search(conversation: Conversation) -> None:
    """A tool that is deferred is found, told of by reference, called, and answers."""
    finished = await conversation.ask(script.SEARCH)
    assert finished.status == 0, finished
    assert script.SEARCHED in conversation.program.text(finished), finished
    first, second, _ = conversation.turns
    offered = [{tool["name"] for tool in turn.body["tools"]} for turn in (first, second)]
    assert offered[1] - offered[0] == {"CronList"}
    assert "tool_reference" in second.raw.decode()
    assert {exchange.status for exchange in conversation.recorder.exchanges} == {200}
