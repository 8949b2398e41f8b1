"""The page of a running deployment, in a browser: it grows by itself, and the cursor may follow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect

from tests.e2e.deployment import Running, up
from tests.page.conftest import CHROMIUM

WAIT_MS = 20_000


async def ask(running: Running, request: str) -> None:
    await running.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello " * 80}],
        max_tokens=4,
        temperature=0,
        extra_headers={"x-request-id": request},
    )


async def test_a_running_deployment_is_watched(tmp_path: Path) -> None:
    """No request yet, the first one, the next one under the cursor that follows; a worker's end is drawn."""
    async with (
        up(tmp_path / "data", "--engine", "simulated", "--workers", "2") as running,
        async_playwright() as player,
    ):
        browser = await player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(f"{running.url}/debug")
        await expect(page.locator("#empty")).to_contain_text("No request yet", timeout=WAIT_MS)
        await ask(running, "the-first")
        await expect(page.locator("#decision h3 code")).to_have_text("the-first", timeout=WAIT_MS)
        await expect(page.locator(".badge.live")).to_have_text("live")
        await page.get_by_role("button", name="Follow").click()
        for request in ("the-second", "the-third"):
            await ask(running, request)
            await expect(page.locator("#decision h3 code")).to_have_text(request, timeout=WAIT_MS)
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#decision h3 code")).to_have_text("the-second")
        await expect(page.locator("#follow")).to_have_attribute("aria-pressed", "false")
        await _loses_a_worker(page, running)
        assert wrong == []
        await browser.close()


async def _loses_a_worker(page: Page, running: Running) -> None:
    os.kill(running.part("decode-1")["pid"], signal.SIGKILL)
    await page.keyboard.press("4")
    lost = page.locator("#events .event", has_text="decode-1 lost")
    await expect(lost).to_have_count(1, timeout=60_000)
    again = page.locator("#events .event", has_text="decode-1 joined")
    await expect(again).to_have_count(2, timeout=60_000)
