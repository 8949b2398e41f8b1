"""The folder of an engine's sockets: that of a killed process goes with the next start, that of a live one stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actors.engines.kv_events.kv_event_feed import KvEventFeed

KILLED = """
import asyncio, sys
from actors.engines.kv_events.kv_event_feed import KvEventFeed
async def main():
    feed = KvEventFeed(lambda _: 0.0, lambda _: None)
    print(feed.folder, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_what_a_killed_process_left_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of a live process, nor of other programs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "contrail-kv-of-a-version-before").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        left = Path((await asyncio.to_thread(process.stdout.readline)).decode().strip())
        live = KvEventFeed(lambda _: 0.0, lambda _: None)
        assert left.is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.is_dir()
    later = KvEventFeed(lambda _: 0.0, lambda _: None)
    assert not left.exists()
    assert Path(live.folder).is_dir()
    assert Path(live.folder).stat().st_mode & 0o777 == 0o700
    await live.stop()
    await later.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["contrail-kv-of-a-version-before"]
