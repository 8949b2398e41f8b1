"""The programs at their pinned versions, one deployment for all, and a recorder between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.agents import fleet, programs, script
from tests.agents.conversation import Conversation
from tests.agents.installed import FOLDER, Missing, installed
from tests.agents.kept import keep
from tests.agents.program import Program
from tests.agents.recorder import recording
from tests.e2e.deployment import Running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-requests", action="store_true", help="write tests/fixtures/agents anew")


def made() -> list[Program]:
    """All of them."""
    return [kind(FOLDER) for kind in programs.ALL]


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where the programs are; the run ends with one sentence where they cannot be."""
    try:
        return installed()
    except Missing as missing:
        pytest.exit(str(missing), returncode=2)


@pytest_asyncio.fixture(scope="session")
async def deployment(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """Three simulated models that know each program's script."""
    replies = script.plain()
    for program in made():
        replies += program.replies()
        if program.has_tools:
            replies += script.conversations(program.name, program.shell)
    async with fleet.running(tmp_path_factory.mktemp("agents"), replies) as running:
        yield running


@pytest.fixture(params=programs.ALL, ids=lambda kind: kind.name)
def program(request: pytest.FixtureRequest) -> Program:
    """Each in turn."""
    kind: type[Program] = request.param
    return kind(FOLDER)


@pytest_asyncio.fixture
async def conversation(
    deployment: Running, program: Program, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Conversation]:
    """The program in a repository of its own, before the deployment."""
    port = int(deployment.url.rpartition(":")[2])
    async with recording("127.0.0.1", port) as recorder:
        conversation = Conversation(deployment, program, recorder, tmp_path)
        yield conversation
        if request.config.getoption("--keep-requests"):
            keep(request.function.__name__, conversation)
