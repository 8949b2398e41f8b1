"""History: a run to be replayed: several replicas under load, workers and front ends killed, settings changed.

python -m tests.chaos.history --decisions 20000 --export run.contrail

It stops by itself once the log has that many decisions, exports the log, and verifies the export three times: every
decision accounted for, none different, the same output each time. Exit status 1 if that is not so.
"""

# ruff: noqa: T201 - it talks to whoever started it
from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from core.ids import StreamName
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.e2e.deployment import Running, contrail, up

LOOK_EVERY_S = 5.0
ENGINE_ARGS = {"capacity_blocks": 256, "eos_every": 0}
OUTPUT_TOKENS = (1, 2, 4, 8, 16)
KILLS_MEAN_S = {"worker": 20.0, "frontend": 45.0}
SETTINGS = (
    "temperature 0.3",
    "policy least-loaded temperature 0.5",
    "policy kv temperature 0.2 prefill_weight 2 tie_margin 1",
    "decode_weight 0.5 temperature 0.8",
)
"""In force one after the other."""
VERIFIED_TIMES = 3
VERIFY_S = 600.0


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.history", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--rate", type=float, default=120.0, help="requests per second, if the machine can")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes-max", type=float, default=15.0)
    parser.add_argument("--export", type=Path, help="leave the export there, and the key beside it as FILE.key")
    return parser.parse_args()


async def main(wanted: argparse.Namespace) -> int:
    """The exit status."""
    folder = Path(tempfile.mkdtemp(prefix="contrail-history-"))
    try:
        workers = [{"engine": "simulated", "count": wanted.workers, "engine_args": ENGINE_ARGS}]
        log = {"max_bytes": "4GiB", "snapshot_every": "1m"}
        deployment = {"version": 1, "log": log, "workers": workers, "frontend": {"replicas": wanted.replicas}}
        file = folder / "history.yaml"
        file.write_text(json.dumps(deployment))
        async with up(folder / "data", "-f", str(file)) as running:
            await _drive(running, wanted)
            _export(running.data, folder / "run.contrail")
        shutil.copy(folder / "data" / "key", folder / "run.contrail.key")
        if wanted.export:
            shutil.copy(folder / "run.contrail", wanted.export)
            shutil.copy(folder / "run.contrail.key", f"{wanted.export}.key")
        return _verified(folder / "run.contrail", wanted.decisions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _drive(running: Running, wanted: argparse.Namespace) -> None:
    """The log has as many decisions, or the time is over."""
    host, _, port = running.url.removeprefix("http://").rpartition(":")
    load = Load(host, int(port), wanted.seed, clients=64, per_s=wanted.rate, output_tokens=OUTPUT_TOKENS)
    faults = Faults(running, wanted.seed, print, means=KILLS_MEAN_S)
    killing = asyncio.create_task(faults.run())
    began_s, changed = time.monotonic(), 0
    try:
        while (made := len(load.attempts)) < wanted.decisions:
            if time.monotonic() - began_s > wanted.minutes_max * 60:
                print(f"only {made} requests in {wanted.minutes_max:g} minutes")
                break
            if made >= (changed + 1) * wanted.decisions / (len(SETTINGS) + 1) and changed < len(SETTINGS):
                _set(running, SETTINGS[changed])
                changed += 1
            print(f"{time.monotonic() - began_s:6.1f} s  {made} requests, {dict(faults.counts)} killed", flush=True)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        killing.cancel()
        await asyncio.wait([killing])
        await load.stop()
    async with running.log() as log:
        print(f"the routing stream has {(await log.state(StreamName('routing'))).messages} messages")


def _set(running: Running, pairs: str) -> None:
    done = contrail("settings", "set", *pairs.split(), "--data", str(running.data))
    print((done.stdout + done.stderr).strip())
    if done.returncode:
        raise SystemExit("the settings could not be changed")


def _export(data: Path, path: Path) -> None:
    done = contrail("export", str(path), "--data", str(data), timeout_s=VERIFY_S)
    print(done.stdout + done.stderr)
    if done.returncode:
        raise SystemExit("the log could not be exported")


def _verified(path: Path, decisions: int) -> int:
    words = ("replay", "verify", "--log", str(path), "--key-file", f"{path}.key", "--json")
    found: list[dict[str, Any]] = []
    for _ in range(VERIFIED_TIMES):
        began_s = time.monotonic()
        done = contrail(*words, timeout_s=VERIFY_S)
        if not done.stdout:
            print(done.stderr)
            return 1
        found.append(json.loads(done.stdout))
        shown = {key: value for key, value in found[-1].items() if not isinstance(value, list)}
        print(f"verified in {time.monotonic() - began_s:.1f} s: {shown}")
        if done.returncode:
            print(json.dumps(found[-1], indent=1)[:4000])
            return 1
    same = len({each["digest"] for each in found}) == 1
    enough = found[0]["decisions"] >= decisions
    print(f"the same output each time: {same}; at least {decisions} decisions: {enough}")
    return 0 if same and enough else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(arguments())))
