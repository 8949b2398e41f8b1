"""The hand for Kubernetes beside a stand-in of an API server: targets become scales, and no fault ends it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.planning import kubernetes_hand, kubernetes_scale
from actors.planning.fleet_target import ACKNOWLEDGED_KEY, TARGET_KEY, FleetAcknowledgement, FleetTarget
from actors.planning.kubernetes_hand import KubernetesHand
from actors.planning.kubernetes_scale import KubernetesOptions, KubernetesScale
from actors.transport.server_client import ServerAddress
from streams.memory.memory_registry import MemoryRegistry, MemoryRegistryStore
from tests.fixtures.certificate import Authority
from tests.fixtures.eventually import eventually
from tests.fixtures.kubernetes_server import KubernetesServer, failure


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again soon."""
    monkeypatch.setattr(kubernetes_hand, "RETRY_S", (0.01, 0.02))


class Cluster:
    """An API server, a registry with targets, and the hand of a planner that leads."""

    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        self.server = server
        self.store = MemoryRegistryStore()
        self.registry = MemoryRegistry(self.store)
        self.leads = True
        self.least = 1
        self.token_file = folder / "token"
        self.token_file.write_text("secret\n")

    @asynccontextmanager
    async def running(self, authority: Path | None = None) -> AsyncIterator[KubernetesHand]:
        """The hand runs."""
        options = KubernetesOptions(
            kind=self.server.kind,
            name="decode",
            namespace="prod",
            server=ServerAddress.parse(self.server.url),
            token_file=self.token_file,
            authority=authority,
        )
        hand = KubernetesHand(KubernetesScale(options), self.registry, "decode", 4, lambda: self.leads, self.least)
        running = asyncio.create_task(hand.run())
        try:
            yield hand
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait((running,))

    def target(self, workers: int, decision: int, fence: int = 1) -> None:
        self.store.put(TARGET_KEY, FleetTarget(fence, decision, "decode", workers).encode())

    async def answers(self, decision: int, workers: int, error: str = "", fence: int = 1) -> None:
        await eventually(lambda: self.answered(decision, workers, error, fence), f"an answer to {decision}", 5)

    def answered(self, decision: int, workers: int, error: str, fence: int) -> bool:
        found = self.store.find(ACKNOWLEDGED_KEY)
        if found is None or found.value is None:
            return False
        answer = FleetAcknowledgement.parse(found.value)
        given = (answer.fence, answer.decision, answer.workers)
        return given == (fence, decision, workers) and (error in answer.error if error else not answer.error)

    def count(self, request: str) -> int:
        """Requests like this so far."""
        return sum(each.startswith(request) for each in self.server.asked)


@asynccontextmanager
async def cluster_of(
    kind: str, replicas: int, folder: Path, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Cluster]:
    """Its API server listens."""
    server = KubernetesServer(kind, replicas)
    await server.open(tls)
    try:
        yield Cluster(server, folder)
    finally:
        await server.close()


@pytest.fixture(params=["statefulset", "deployment"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(request.param, 2, tmp_path) as cluster:
        yield cluster


async def test_the_scale_follows_the_target(cluster: Cluster) -> None:
    """Within 1 and the most. It is acknowledged when the API server has it: none of the new pods is ready."""
    async with cluster.running() as hand:
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        assert cluster.server.replicas == 3
        cluster.target(99, 11)
        await cluster.answers(11, 4)
        cluster.target(0, 12)
        await cluster.answers(12, 1)
        assert (hand.replicas, hand.fault) == (1, "")
        assert len(cluster.server.names) == 1


async def test_a_scale_may_be_zero(cluster: Cluster) -> None:
    """Where the file lets the fleet end; the next request starts a pod."""
    cluster.least = 0
    async with cluster.running() as hand:
        cluster.target(0, 10)
        await cluster.answers(10, 0)
        assert (cluster.server.replicas, hand.replicas) == (0, 0)
        cluster.target(1, 11)
        await cluster.answers(11, 1)
        assert cluster.server.replicas == 1


async def test_the_youngest_pods_go(cluster: Cluster) -> None:
    """Those of the highest numbers; of a Deployment those that the hand marks, and pods that are not ready before."""
    server = cluster.server
    server.set_replicas(4)
    first, second, third, fourth = server.pods
    server.make_ready(fourth)
    async with cluster.running():
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        assert not server.marked, "those that stay have no mark"
        cluster.target(2, 11)
        await cluster.answers(11, 2)
    assert server.deleted == ([third, fourth] if server.kind == "deployment" else [fourth, third])
    assert server.names == sorted([first, second])
    assert not server.marked
    if server.kind == "statefulset":
        assert not cluster.count("GET /api/v1"), "no right to pods is needed"


async def test_a_mark_goes_with_its_order(tmp_path: Path) -> None:
    """Where the scale could not be changed in the end, the next fall takes other pods."""
    async with cluster_of("deployment", 3, tmp_path) as cluster:
        server = cluster.server
        first, second, third = server.pods
        server.pods[third]["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "-2147483647"}
        server.set_replicas(4)
        for name in server.names:
            server.make_ready(name)
        async with cluster.running():
            cluster.target(3, 10)
            await cluster.answers(10, 3)
        assert server.names == sorted([first, second, third])
        assert not server.marked


async def test_older_targets_are_not_carried_out(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that has lost its lead may write late; the registry's newest target counts, whichever was seen."""
    monkeypatch.setattr(kubernetes_hand, "REFRESH_S", 0.02)
    async with cluster.running():
        cluster.target(3, 10, fence=5)
        await cluster.answers(10, 3, fence=5)
        cluster.target(1, 11, fence=4)
        looks = cluster.count("GET /apis")
        await eventually(lambda: cluster.count("GET /apis") >= looks + 2, "two looks, the first of them at its end")
        assert cluster.server.replicas == 3


async def test_an_old_planners_hand_changes_nothing_late(cluster: Cluster) -> None:
    """Its successor's target came between its look at the scale and its look at the registry; or the successor changed
    the scale right before its own change, which is refused."""
    left = ["GET /apis", "PATCH /apis"]

    def meanwhile(request: str) -> None:
        if left and request.startswith(left[0]):
            if left.pop(0) == "GET /apis":
                cluster.target(4, 12, fence=2)
            else:
                cluster.target(1, 13, fence=3)
                cluster.server.set_replicas(1)

    cluster.target(3, 10)
    cluster.server.on_request = meanwhile
    async with cluster.running():
        await cluster.answers(13, 1, fence=3)
    assert cluster.server.replicas == 1
    assert cluster.count("PATCH /apis") == 1
    assert not left


async def test_a_planner_that_does_not_lead_leaves_the_scale_alone(cluster: Cluster) -> None:
    """It asks the API server nothing."""
    cluster.leads = False
    async with cluster.running() as hand:
        cluster.target(3, 10)
        assert await hand._attempt()
        assert not cluster.server.asked
        cluster.leads = True
        cluster.target(3, 11)
        await cluster.answers(11, 3)


async def test_conflicts_are_settled_by_another_look(cluster: Cluster) -> None:
    """As often as CONFLICTS_MAX at once; then it is a failure, and tried again later."""
    left = 3

    def change(request: str) -> None:
        nonlocal left
        if request.startswith("PATCH /apis") and left:
            left -= 1
            cluster.server.touch()

    cluster.server.on_request = change
    async with cluster.running() as hand:
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        assert cluster.count("PATCH /apis") == 4
        left = 1000
        cluster.target(4, 11)
        await cluster.answers(11, 3, "changed by others 5 times")
        assert hand.fault
        left = 0
        await cluster.answers(11, 4)
        assert not hand.fault


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (failure(403, "no"), "bind a role with `get` and `patch` of"),
        (failure(404, "gone"), "there is no statefulset/decode in the namespace prod"),
        (failure(401, "who"), "does not know the token in"),
        (failure(422, "invalid"), "with 422 (invalid)"),
        (failure(429, "slow down"), "answers 429"),
        (
            failure(503, "starting"),
            r"answers 503 to GET /apis/apps/v1/namespaces/prod/statefulsets/decode/scale (start",
        ),
        ((500, b"\xff\xfe not JSON"), "answers 500"),
        ((200, b"<html>"), "is not that of an API server"),
        ((200, b'{"kind": "Scale", "metadata": {}, "spec": {"replicas": 2}}'), "no Scale with a version"),
        (
            (200, b'{"kind": "Scale", "metadata": {"resourceVersion": "1"}, "spec": {"replicas": "2"}}'),
            "is not that of",
        ),
        (None, "hung up"),
    ],
)
async def test_a_fault_is_named_and_tried_again(
    tmp_path: Path, answer: tuple[int, bytes] | None, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log, and to the planner; the target is reached when it is over."""
    async with cluster_of("statefulset", 2, tmp_path) as cluster:
        server = cluster.server
        cluster.target(3, 10)
        server.answers = [answer] * 5
        async with cluster.running():
            with caplog.at_level(logging.WARNING):
                await cluster.answers(10, 0, sentence)
                await cluster.answers(10, 3)
        assert sum("cannot be scaled now" in record.message for record in caplog.records) == 1
        assert len(server.asked) == 7


async def test_rights_for_pods_are_named(tmp_path: Path) -> None:
    """Of a Deployment, which shrinks only with its marks."""
    async with cluster_of("deployment", 3, tmp_path) as cluster:
        server = cluster.server
        server.rights = server.rights - {"PATCH pods"}
        cluster.target(2, 10)
        async with cluster.running():
            await cluster.answers(10, 3, "`list` and `patch` of `pods`")
            assert server.replicas == 3
            server.rights = server.rights | {"PATCH pods"}
            await cluster.answers(10, 2)


async def test_a_server_that_hangs_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has a bound, and so has an attempt."""
    cluster.server.hangs = True
    cluster.target(3, 10)
    monkeypatch.setattr(kubernetes_scale, "REQUEST_S", 0.05)
    async with cluster.running():
        await cluster.answers(10, 0, "does not answer GET")
        monkeypatch.setattr(kubernetes_scale, "REQUEST_S", 10)
        monkeypatch.setattr(kubernetes_hand, "ATTEMPT_MAX_S", 0.05)
        await cluster.answers(10, 0, "not changed within 0.05 s")


def test_pauses_grow_to_a_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And are short again after a success."""
    monkeypatch.setattr(kubernetes_hand, "RETRY_S", (1.0, 30.0))
    address = ServerAddress.parse("http://127.0.0.1:1")
    options = KubernetesOptions(
        kind="statefulset", name="a", namespace="b", server=address, token_file=tmp_path, authority=None
    )
    registry = MemoryRegistry(MemoryRegistryStore())
    hand = KubernetesHand(KubernetesScale(options), registry, "decode", 4, lambda: True)

    assert [hand._pause_s(False) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert hand._pause_s(True) == kubernetes_hand.REFRESH_S
    assert hand._pause_s(False) == 1


async def test_more_pods_than_the_bound_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come in pages; a server that gives pages for ever is left."""
    monkeypatch.setattr(kubernetes_scale, "PODS_MAX", 3)
    async with cluster_of("deployment", 5, tmp_path) as cluster:
        cluster.target(3, 10)
        async with cluster.running():
            await cluster.answers(10, 5, "has more than 3 pods")
            assert cluster.server.replicas == 5


async def test_the_token_is_read_for_each_request(cluster: Cluster) -> None:
    """A service account's is renewed while its pod runs."""
    async with cluster.running():
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        cluster.server.token = "renewed"
        cluster.target(4, 11)
        await cluster.answers(11, 3, "does not know the token")
        cluster.token_file.write_text("two words")
        await cluster.answers(11, 3, "is not one word of")
        cluster.token_file.write_text("long" * kubernetes_scale.TOKEN_BYTES_MAX)
        await cluster.answers(11, 3, "is not one word of 16384 bytes")
        cluster.token_file.unlink()
        await cluster.answers(11, 3, "cannot be read")
        cluster.token_file.write_text("renewed")
        await cluster.answers(11, 4)


async def test_a_registry_that_is_away_changes_nothing(cluster: Cluster) -> None:
    """The newest target is not known then."""
    async with cluster.running() as hand:
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        cluster.registry.away = True
        cluster.server.set_replicas(2)
        hand._changed.set()
        await eventually(lambda: hand.fault, "the fault")
        assert cluster.server.replicas == 2
        cluster.registry.away = False
        await eventually(lambda: cluster.server.replicas == 3, "the scale of the target")


async def test_a_scale_that_others_change_is_set_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within REFRESH_S."""
    monkeypatch.setattr(kubernetes_hand, "REFRESH_S", 0.02)
    async with cluster.running():
        cluster.target(3, 10)
        await cluster.answers(10, 3)
        cluster.server.set_replicas(1)
        await eventually(lambda: cluster.server.replicas == 3, "the scale of the target")


async def test_the_server_is_proved_by_its_authority(tmp_path: Path) -> None:
    """Another one's certificate is refused."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.own.cert, authority.own.key)
    async with cluster_of("statefulset", 2, tmp_path, context) as cluster:
        cluster.target(3, 10)
        async with cluster.running():
            await cluster.answers(10, 0, "certificate verify failed")
        async with cluster.running(tmp_path / "no-such-file"):
            await cluster.answers(10, 0, "planner.kubernetes.ca_file")
        async with cluster.running(authority.cert):
            await cluster.answers(10, 3)
