"""How a model is spoken to, where its operator says it: the files that workers hand out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.engines.simulated.simulated_engine import SimulatedSettings
from actors.worker.model_files import PARSERS, TEMPLATE, ChatFormat, tokenizer_files
from core.errors import CallerError
from tests.actors.world import world
from tests.fixtures.eventually import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_bytes(b"{}")
    (tmp_path / "model" / TEMPLATE).write_text("its own")
    (tmp_path / "other.jinja").write_text("another")
    return tmp_path


def test_files(folder: Path) -> None:
    """Parsers stand in a file of their own if any is named; a template takes the place of the model's."""
    model, other = str(folder / "model"), str(folder / "other.jinja")
    assert tokenizer_files(model) == {"tokenizer.json": b"{}", TEMPLATE: b"its own"}
    found = tokenizer_files(model, ChatFormat("hermes", "qwen3", other))
    assert json.loads(found[PARSERS]) == {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    assert found[TEMPLATE] == b"another"
    assert json.loads(tokenizer_files(model, ChatFormat(reasoning_parser="qwen3"))[PARSERS]) == {
        "reasoning_parser": "qwen3"
    }
    assert PARSERS not in tokenizer_files(model, ChatFormat(chat_template=other))
    with pytest.raises(CallerError, match="no chat template at /nowhere"):
        tokenizer_files(model, ChatFormat(chat_template="/nowhere"))


async def test_a_worker_hands_them_out(folder: Path) -> None:
    """A replica has them on the model's card."""
    settings = SimulatedSettings(model_path=str(folder / "model"))
    async with world() as it:
        await it.worker("w", settings=settings, manner=ChatFormat("hermes", "", str(folder / "other.jinja")))
        router = await it.router()
        await it.ready(router, 1)
        await eventually(router.models, "the model is known")
        files = router.card("sim").files
        assert json.loads(files[PARSERS]) == {"tool_call_parser": "hermes"}
        assert files[TEMPLATE] == b"another"
