"""The page's list of one session, where clients name sessions."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs
from playwright.sync_api import Browser, expect

from core.settings import RoutingSettings
from core.subjects import LOAD
from tests.page.conftest import looking, serving
from tests.projections.facts import finished, joined, load, prompt
from tests.replay.staged import KV, A, R, Stage


def test_the_list_is_of_one_session(browser: Browser, tmp_path: Path) -> None:
    """And of those that no client named."""
    stage = Stage()
    stage.replica(R, "frontend-0", RoutingSettings(policy="kv"))
    stage.say(KV, A, joined("decode-0"))
    stage.say(LOAD, A, load())
    for number, session in enumerate(("5e55", "5e55", "beef", "")):
        stage.clock.advance(100)
        name = f"r{number}"
        stage.tell(structs.replace(stage.decided(name, prompt(number)), session=session), finished(name))
    log = stage.archived(tmp_path / "log.contrail")
    with serving("--log", str(log)) as url, looking(browser, url) as page:
        sessions = page.get_by_label("List only the session")
        expect(sessions.locator("option")).to_have_text(["all sessions", "no session", "5e55", "beef"])
        for session, requests in (("5e55", 2), ("beef", 1), ("", 1)):
            sessions.select_option(f"={session}")
            expect(page.locator("#list-count")).to_have_text(f"{requests} of 4")
