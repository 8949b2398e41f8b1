"""A program that takes the port of a dead worker, or introduces itself under a name that is not its own."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from actors.transport.frames import Introduce, Tokens, Welcome, WorkerHello
from actors.transport.framing import encode_frame
from api.config.addresses import split_address
from core.generation import Output
from tests.actors.transport.test_worker_server import Site, site
from tests.chaos.part import Part
from tests.e2e.deployment import Running, up
from tests.fixtures.eventually import eventually
from tests.fixtures.loops import Run, run

__all__ = ["run"]

PROMPTS = 30
SECRET = "the launch code is 4711"


class Impostor:
    """Listens on a port, answers as a worker of this or the earlier version would, and keeps every byte it gets."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.greeted = 0
        self.received = bytearray()
        self.kinds = set[str]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.greeted += 1
        try:
            while True:
                (size,) = struct.unpack("<I", await reader.readexactly(4))
                body = await reader.readexactly(size)
                self.received += body
                frame = msgspec.msgpack.decode(body)
                self.kinds.add(frame["type"])
                for answer in self._answers(frame):
                    writer.write(encode_frame(answer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:  # the loop may end first
            writer.close()

    def _answers(self, frame: dict[str, Any]) -> list[Any]:
        welcome = Welcome(worker=self.worker, name="stray", model="tiny")
        if frame["type"] == "ClientHello":  # a proof that it cannot have, and the welcome without one
            return [WorkerHello(nonce=frame["nonce"], proof=bytes(32)), welcome]
        if frame["type"] == "Generate":
            return [Tokens(stream=frame["stream"], output=Output(tokens=(1,), cached_tokens=0, finish="stop"))]
        return [welcome]


@asynccontextmanager
async def impostor_at(address: str, worker: str) -> AsyncIterator[Impostor]:
    it = Impostor(worker)
    server = await asyncio.start_server(it.serve, *split_address(address))
    try:
        yield it
    finally:
        server.close()


async def _ask(running: Running, prompt: str) -> str:
    answer = await running.openai.completions.create(model="tiny", prompt=prompt, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4, "a forged answer"
    return answer.choices[0].text


async def test_the_port_of_a_dead_worker_gives_no_prompt_and_takes_no_answer(tmp_path: Path) -> None:
    """The program has the address of a worker that was killed, while the worker's lease still stands."""
    async with up(tmp_path / "data", "--engine", "simulated", "--workers", "1") as running:
        words = ["worker", "--data", str(tmp_path / "data"), "--name", "stray", "--model", "tiny", "--engine"]
        model = ["--model-path", str(tmp_path / "data" / "models" / "tiny")]
        stray = Part("stray", tmp_path / "stray.log", [*words, "simulated", *model])
        await stray.start()
        state = stray.state()
        frontend = running.part("frontend-0")["ops"]
        await eventually(lambda: len(running.get(frontend, "/state")["workers"]) == 2, "both workers are known")
        address = await _address_of(running, state["worker"])
        stray.kill()
        async with impostor_at(address, state["worker"]) as thief:
            await eventually(lambda: thief.greeted, "a front end tries the address again")
            for number in range(PROMPTS):
                await _ask(running, f"{SECRET} {number}")
            await eventually(lambda: thief.greeted > 1, "and again")
        assert thief.kinds == {"ClientHello"}
        key = running.connection.key
        secrets = [key.secret, key.link_key, key.legacy_door_key.encode(), bytes.fromhex(key.legacy_door_key)]
        assert [each for each in secrets if each in thief.received] == []


async def _address_of(running: Running, worker: str) -> str:
    events = await running.events("kv_0")
    return next(str(event.address) for event in reversed(events) if getattr(event, "name", "") == "stray")


def test_a_part_cannot_introduce_itself_under_the_id_of_another(run: Run) -> None:
    """It holds the link key, and would get the jobs and prompts that are for another prefill worker."""

    async def scenario() -> None:
        async with site() as it:
            client = await it.connect(greet=False)
            handshake = await client.greet(it.port.address, client="0000000000000001")
            client.say(_introduction("0000000000000002", b""))
            assert await client.refusal() == "you did not prove to be 0000000000000002"
            assert handshake.proof_of("0000000000000001") != handshake.proof_of("0000000000000002")

    run(scenario)


def test_a_part_goes_on_under_another_id_by_a_proof_of_it(run: Run) -> None:
    async def scenario() -> None:
        async with site() as it:
            client = await it.connect(greet=False)
            handshake = await client.greet(it.port.address, client="0000000000000001")
            client.say(
                _introduction("0000000000000001", b""),
                _introduction("0000000000000002", handshake.proof_of("0000000000000002")),
                _introduction("0000000000000002", b""),
                _introduction("0000000000000001", b""),
            )
            assert await client.refusal() == "you did not prove to be 0000000000000001"
            assert [frame.worker[-1] for frame in _introductions(it)] == ["1", "2", "2"]

    run(scenario)


def test_a_proof_of_one_connection_opens_no_other(run: Run) -> None:
    """An eavesdropper sends again all that a client sent."""

    async def scenario() -> None:
        async with site() as it:
            honest = await it.connect(greet=False)
            handshake = await honest.greet(it.port.address)
            copy = await it.connect(greet=False)
            copy.say(handshake.hello)
            assert isinstance(await copy.hear(), WorkerHello)
            copy.say(honest.proof)
            assert "your key is another one" in await copy.refusal()

    run(scenario)


def _introduction(worker: str, proof: bytes) -> Introduce:
    return Introduce(worker=worker, name="p", model="sim", block_size=16, layout="", proof=proof)


def _introductions(it: Site) -> list[Introduce]:
    return [frame for frame in it.host.frames if isinstance(frame, Introduce)]
