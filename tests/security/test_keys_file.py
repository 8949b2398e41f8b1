"""The file of API keys broken, deleted or unreadable: a revoked key opens nothing, and the file mended opens again."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.auth import api_keys
from api.auth.keyring import CHECK_EVERY_MS
from tests.api.guarded import COMPLETIONS, Guarded, made, run
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually

Breaking = Callable[[Path], object]


def unlinked(file: Path) -> None:
    file.unlink()


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def too_long(file: Path) -> None:
    file.write_bytes(b"#" * (api_keys.KEYS_BYTES_MAX + 1))


@pytest.mark.parametrize("breaking", [unlinked, a_folder, too_long])
async def test_a_file_that_cannot_be_read_admits_no_key(
    tmp_path: Path, breaking: Breaking, caplog: pytest.LogCaptureFixture
) -> None:
    """503 with the reason, not 401: the client's key is not at fault. The file put back opens within a check."""
    file = tmp_path / "keys"
    key = made(file)
    good = file.read_bytes()
    guarded = Guarded(file)
    async with guarded.served() as http:
        assert await guarded.ask(http, key) == 200
        breaking(file)
        guarded.clock.advance(CHECK_EVERY_MS)
        for _ in range(3):
            answer = await http.post(COMPLETIONS, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "keys_unreadable"
            assert answer.headers["retry-after"] == "1"
            assert str(file) not in answer.text
            guarded.clock.advance(CHECK_EVERY_MS)
        health = await http.get("/health")
        assert health.status_code == 503
        assert "keys" in health.json()["waiting_for"]
        assert (await http.post("/v1/messages", headers={"x-api-key": key})).status_code == 529
        assert (await http.post(COMPLETIONS)).status_code == 401  # no key was sent
        assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
        if file.is_dir():
            file.rmdir()
        file.write_bytes(good)
        guarded.clock.advance(CHECK_EVERY_MS)
        assert await guarded.ask(http, key) == 200
        assert (await http.get("/health")).status_code == 200


async def test_a_revoked_key_does_not_outlive_a_bad_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bad line is skipped and named once by its number; every other key stands, the revoked one does not."""
    file = tmp_path / "keys"
    revoked, good = made(file, "revoked"), made(file, "good")
    guarded = Guarded(file)
    async with guarded.served() as http:
        assert await guarded.ask(http, revoked) == 200
        run("revoke", "--file", str(file), "revoked")
        file.write_text(file.read_text() + "ck-in-clear-by-mistake\n")
        guarded.clock.advance(CHECK_EVERY_MS)
        for _ in range(3):
            assert await guarded.ask(http, revoked) == 401
            assert await guarded.ask(http, good) == 200
            guarded.clock.advance(CHECK_EVERY_MS)
        health = await http.get("/health")
        assert health.status_code == 200
        assert "line 2" in health.json()["degraded"]["keys"]
        assert [each.message for each in caplog.records if "line 2" in each.message]
        assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
        assert "in-clear" not in caplog.text + health.text


async def test_of_two_lines_of_one_key_the_first_stands(tmp_path: Path) -> None:
    """A line that repeats a name or a digest is skipped, and the others stand."""
    file = tmp_path / "keys"
    first, second = made(file, "first"), made(file, "second")
    line = file.read_text().splitlines()[0]
    guarded = Guarded(file)
    async with guarded.served() as http:
        file.write_text(file.read_text() + line + "\n" + line.replace('"name":"first"', '"name":"again"') + "\n")
        guarded.clock.advance(CHECK_EVERY_MS)
        assert [await guarded.ask(http, key) for key in (first, second)] == [200, 200]
        skipped = (await http.get("/health")).json()["degraded"]["keys"]
        assert "line 3" in skipped
        assert "1 more" in skipped


async def test_a_failed_read_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no file can be opened the revoked key is refused; afterwards the file is read though it did not change."""
    file = tmp_path / "keys"
    revoked, good = made(file, "revoked"), made(file, "good")
    guarded = Guarded(file)
    async with guarded.served() as http:
        assert await guarded.ask(http, revoked) == 200
        run("revoke", "--file", str(file), "revoked")
        guarded.clock.advance(CHECK_EVERY_MS)
        with monkeypatch.context() as patch:
            refuse_opening(patch, file)
            assert await guarded.ask(http, revoked) == 503
            assert await guarded.ask(http, good) == 503
        guarded.clock.advance(CHECK_EVERY_MS)
        assert await guarded.ask(http, revoked) == 401
        assert await guarded.ask(http, good) == 200


def refuse_opening(patch: pytest.MonkeyPatch, file: Path) -> None:
    """The process has no free file for this path, as under a flood of connections."""
    genuine, genuine_os = Path.open, os.open

    def refuse(path: Any) -> None:
        if os.fspath(path) == str(file):
            raise OSError(errno.EMFILE, "Too many open files", str(file))

    def path_open(self: Path, *words: Any, **more: Any) -> Any:
        refuse(self)
        return genuine(self, *words, **more)

    def os_open(path: Any, *words: Any, **more: Any) -> int:
        refuse(path)
        return genuine_os(path, *words, **more)

    patch.setattr(Path, "open", path_open)
    patch.setattr(os, "open", os_open)


async def test_a_file_that_goes_while_its_mode_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is a 500: the file counts as unreadable, and is read at the next check."""
    file = tmp_path / "keys"
    key = made(file)
    guarded = Guarded(file)
    async with guarded.served() as http:
        os.utime(file, ns=(1, 1))
        guarded.clock.advance(CHECK_EVERY_MS)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", fails)
            assert await guarded.ask(http, key) in {200, 503}
        guarded.clock.advance(CHECK_EVERY_MS)
        assert await guarded.ask(http, key) == 200


def fails(path: Path, **_: Any) -> os.stat_result:
    raise OSError(errno.ENOENT, "No such file or directory", str(path))


async def test_a_running_deployment_closes_and_opens_again(tmp_path: Path) -> None:
    """Both front ends refuse the key while the file is gone, `/ready` says so, and neither is started again."""
    file = tmp_path / "keys"
    key = made(file)
    words = ("--engine", "simulated", "--workers", "1", "--replicas", "2", "--keys", str(file))
    async with up(tmp_path / "data", *words) as running, httpx.AsyncClient(base_url=running.url, verify=False) as http:
        pids = {part["name"]: part["pid"] for part in running.run()["parts"]}
        headers = {"authorization": f"Bearer {key}"}

        async def statuses() -> set[int]:
            """Of new connections, which reach either front end."""
            async with httpx.AsyncClient(base_url=running.url, verify=False) as fresh:
                return {(await fresh.get("/v1/models", headers=headers)).status_code for _ in range(8)}

        assert await statuses() == {200}
        file.rename(tmp_path / "away")
        await asyncio.sleep(1.5)
        assert await statuses() == {503}
        assert "keys" in ready(running, "frontend-0")["waiting_for"]
        assert "keys" in ready(running, "frontend-1")["waiting_for"]
        (tmp_path / "away").rename(file)
        await asyncio.sleep(1.5)
        assert await statuses() == {200}
        await eventually(lambda: ready(running, "frontend-0")["ready"], "readiness")
        assert {part["name"]: part["pid"] for part in running.run()["parts"]} == pids
        assert (await http.get("/health")).status_code == 200


def ready(running: Running, name: str) -> Any:
    """The answer of a part's /ready, of either status."""
    try:
        return running.get(running.part(name)["ops"], "/ready")
    except urllib.error.HTTPError as refused:
        return json.load(refused)
