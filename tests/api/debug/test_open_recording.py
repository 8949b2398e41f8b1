"""`contrail replay open`: what it says when it cannot, and that it ends as it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from core.keys import DeploymentKey
from tests.page.fleet import Scale, made

OPEN = (sys.executable, "-P", "-m", "api.cli", "replay", "open", "--no-browser")


def refused(*words: str) -> str:
    """Its one sentence."""
    ended = subprocess.run([*OPEN, *words], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("contrail: ")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


def test_it_says_what_is_wrong(tmp_path: Path) -> None:
    """No file, no export, another deployment's key, both a file and a deployment: status 2 and a sentence."""
    log, other, none = made(tmp_path / "log", Scale(decisions=3)), tmp_path / "other", tmp_path / "none"
    DeploymentKey.load_or_create(other)
    none.write_bytes(b"nothing of ours")
    assert "cannot be read" in refused("--log", str(tmp_path / "nothing"))
    assert "no export of a log" in refused("--log", str(none))
    assert "not that of the deployment" in refused("--log", str(log), "--key-file", str(other))
    assert "not both" in refused("--log", str(log), "--nats", "nats://127.0.0.1:1")


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """With the key everything is proved; Ctrl-C ends it with status 0."""
    key = tmp_path / "key"
    key.write_text(bytes(range(32)).hex())
    log = made(tmp_path / "log", Scale(decisions=30))
    words = [*OPEN, "--log", str(log), "--key-file", str(key)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/api/status", timeout=10) as answer:
            assert b'"proved":true' in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
