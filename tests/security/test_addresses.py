"""Passwords in the addresses of NATS and etcd: addresses stand in run.json, in command lines and in reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployment import contrail

SECRET = "hunter2secret"
WAYS = [
    *(("up --print-config", given) for given in ("file", "environment", "flag")),
    ("up", "flag"),
    ("doctor", "environment"),
    ("worker --model tiny", "file"),
    ("frontend", "flag"),
]
ADDRESSES = {
    "nats": (f"nats://contrail:{SECRET}@127.0.0.1:4222", "log.credentials", "CONTRAIL_NATS_USER"),
    "etcd": (f"root:{SECRET}@127.0.0.1:2379", "log.etcd_credentials", "CONTRAIL_ETCD_USER"),
}


@pytest.mark.parametrize("plane", ADDRESSES)
@pytest.mark.parametrize(("command", "given"), WAYS)
def test_a_password_in_an_address_is_refused(tmp_path: Path, plane: str, given: str, command: str) -> None:
    """The refusal names the settings to use, repeats nothing of it, and nothing is written."""
    address, section, variable = ADDRESSES[plane]
    other = {"nats": "--etcd=127.0.0.1:2379", "etcd": "--nats=nats://127.0.0.1:4222"}[plane]
    words = [*command.split(), other] + (["--data", str(tmp_path / "data")] if command.startswith("up") else [])
    environment: dict[str, Any] = {}
    if given == "file":
        file = tmp_path / "own.yaml"
        value = f'["{address}"]'
        file.write_text(f"version: 1\nlog:\n  {plane}: {value}\n")
        words += ["-f", str(file)]
    elif given == "environment":
        environment[f"CONTRAIL_{plane.upper()}"] = address
    else:
        words += [f"--{plane}={address}"]
    result = contrail(*words, **environment)
    assert result.returncode == 2, result.stdout
    assert f"give them under {section}, or by {variable}" in result.stderr
    assert SECRET not in result.stdout + result.stderr
    assert not (tmp_path / "data").exists()
