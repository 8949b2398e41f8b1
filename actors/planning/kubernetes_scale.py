"""KubernetesScale: the number of pods of one Deployment or StatefulSet, read and changed by its `scale` sub-resource.

Each request has a bound, and errors say what an operator has to do. The token is read for each request: the one of a
service account is renewed while its pod runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import orjson

from actors.transport.server_client import ServerAddress, ServerClient, ServerReply
from core.errors import CallerError, PeerError, Refused, Unavailable

DEPLOYMENT, STATEFUL_SET = KINDS = ("deployment", "statefulset")
"""Kinds of resources, as `kubectl` writes them."""
REQUEST_S = 10.0
"""Bound on one request."""
TOKEN_BYTES_MAX = 16 * 1024
PODS_PAGE = 250
"""Pods in one answer: some 10 KB each."""
PODS_MAX = 8192
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of pods: of those that are ready, the cheapest ones of a Deployment are deleted first."""
CHEAPEST = "-2147483647"
"""Its value for pods that are to go: no operator's own value is lower but one."""
MESSAGE_CHARS_MAX = 200
"""Of the server's own words in an error."""
SCALE_KIND = "Scale"
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY, SERVER_ERROR = 401, 403, 404, 409, 429, 500
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}
T = TypeVar("T")


class ScaleConflict(PeerError):
    """Another program has changed the resource since its scale was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """One resource, and the way to it."""

    kind: str
    """One of KINDS."""
    name: str
    namespace: str
    server: ServerAddress
    token_file: Path
    authority: Path | None
    """Certificates that may vouch for the API server; None for the system's."""

    def __str__(self) -> str:
        return f"{self.kind}/{self.name} in the namespace {self.namespace}"

    @property
    def path(self) -> str:
        """Of the sub-resource."""
        return f"/apis/apps/v1/namespaces/{self.namespace}/{self.kind}s/{self.name}/scale"

    @property
    def pods_path(self) -> str:
        """Of the namespace's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"


class PodCount(NamedTuple):
    """A scale as it was read."""

    replicas: int
    """Pods that are wanted."""
    version: str
    """Of the resource: a change names it, and is refused if there was another one since."""
    selector: str
    """Of the resource's pods."""


class KubernetesScale:
    """Speaks to the API server; keeps nothing between two calls.

    Each call raises Unavailable if the server does not answer or asks to try again, Refused if it says no for good,
    PeerError if it does not answer as an API server does, CallerError if a file of the options cannot be used.
    """

    def __init__(self, options: KubernetesOptions) -> None:
        self.options = options

    def __repr__(self) -> str:
        return f"<KubernetesScale of {self.options}>"

    async def read(self) -> PodCount:
        """The scale now."""
        return _pod_count(_decoded(_scales, await self._request("GET", self.options.path)))

    async def change(self, replicas: int, version: str) -> None:
        """The resource wants so many pods; its controller starts or deletes pods later. ScaleConflict, and nothing
        changes, if the resource has another version."""
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}
        answer = await self._request("PATCH", self.options.path, patch)
        found = _pod_count(_decoded(_scales, answer))
        if found.replicas != replicas:
            raise PeerError(f"{self.options} has {found.replicas} pods where {replicas} were asked for")

    async def mark_for_deletion(self, selector: str, kept: int) -> None:
        """The pods of a Deployment that go when only `kept` stay are those that are not ready, then the youngest, whose
        caches hold least. Their deletion cost says so, and no other pod keeps our mark. A request for each pod whose
        mark changes."""
        pods = [pod for pod in await self._pods(selector) if pod.metadata.deletion is None]
        pods.sort(key=lambda pod: (pod.metadata.creation, pod.metadata.name), reverse=True)
        pods.sort(key=lambda pod: pod.is_ready)  # stable: the controller deletes pods that are not ready first, too
        for place, pod in enumerate(pods):
            is_marked = (pod.metadata.annotations or {}).get(DELETION_COST) == CHEAPEST
            goes = place < len(pods) - kept
            if is_marked != goes:
                patch = {"metadata": {"annotations": {DELETION_COST: CHEAPEST if goes else None}}}
                answer = await self._answer("PATCH", f"{self.options.pods_path}/{pod.metadata.name}", patch)
                if answer.status != NOT_FOUND:  # a pod that is gone needs no mark
                    self._check("PATCH", self.options.pods_path, answer)

    async def _pods(self, selector: str) -> list[_Pod]:
        found: list[_Pod] = []
        query = {"labelSelector": selector, "limit": str(PODS_PAGE)}
        while True:
            path = f"{self.options.pods_path}?{urlencode(query, quote_via=quote)}"
            page = _decoded(_pod_lists, await self._request("GET", path))
            found += page.items
            if not page.metadata.next_page:
                return found
            if len(found) > PODS_MAX:
                raise PeerError(f"{self.options} has more than {PODS_MAX} pods")
            query["continue"] = page.metadata.next_page

    async def _request(self, method: str, path: str, patch: Mapping[str, Any] | None = None) -> bytes:
        answer = await self._answer(method, path, patch)
        self._check(method, path, answer)
        return answer.body

    async def _answer(self, method: str, path: str, patch: Mapping[str, Any] | None) -> ServerReply:
        it = self.options
        try:
            client = ServerClient(it.server, _token(it.token_file), it.authority)
        except OSError as error:  # ssl.SSLError is one
            raise CallerError(f"planner.kubernetes.ca_file: {it.authority} cannot be used: {error}") from error
        body, headers = (None, {}) if patch is None else (orjson.dumps(patch), MERGE_PATCH)
        try:
            async with asyncio.timeout(REQUEST_S), client.request(method, path, body, headers) as answer:
                return ServerReply(answer.status, await answer.body())
        except TimeoutError as error:
            raise Unavailable(f"{it.server} does not answer {method} {path} within {REQUEST_S:g} s") from error

    def _check(self, method: str, path: str, answer: ServerReply) -> None:
        """Raises unless the answer is a success."""
        it, status = self.options, answer.status
        if 200 <= status < 300:
            return
        reason = _reason(answer.body)
        if status == CONFLICT:
            raise ScaleConflict(f"another program changes {it}{reason}")
        if status == UNAUTHORIZED:
            raise Refused(f"the API server does not know the token in {it.token_file}: give its service account's file")
        if status == FORBIDDEN:
            rights = f"`get` and `patch` of `{it.kind}s/scale`" + (
                ", `list` and `patch` of `pods`" if it.kind == DEPLOYMENT else ""
            )
            raise Refused(
                f"the API server forbids {method} {path.partition('?')[0]}: bind a role with {rights} in the namespace "
                f"{it.namespace} to the planner's service account{reason}"
            )
        if status == NOT_FOUND:
            raise Refused(f"there is no {it}: `planner.kubernetes` names another one, or it is not made yet{reason}")
        if status == TOO_MANY or status >= SERVER_ERROR:
            raise Unavailable(f"the API server answers {status} to {method} {path.partition('?')[0]}{reason}")
        raise Refused(f"the API server refuses {method} {path.partition('?')[0]} with {status}{reason}")


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")
    creation: str = msgspec.field(default="", name="creationTimestamp")
    """In RFC 3339, of one length: their order is that of time."""
    deletion: str | None = msgspec.field(default=None, name="deletionTimestamp")
    annotations: dict[str, str] | None = None
    next_page: str = msgspec.field(default="", name="continue")


class _ScaleSpec(msgspec.Struct, frozen=True):
    replicas: int = 0


class _ScaleStatus(msgspec.Struct, frozen=True):
    selector: str = ""


class _Scale(msgspec.Struct, frozen=True):
    kind: str
    metadata: _Metadata
    spec: _ScaleSpec
    status: _ScaleStatus = _ScaleStatus()


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _PodStatus(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _PodStatus = _PodStatus()

    @property
    def is_ready(self) -> bool:
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)


class _PodList(msgspec.Struct, frozen=True):
    metadata: _Metadata
    items: tuple[_Pod, ...]


class _Failure(msgspec.Struct, frozen=True):
    message: str


_scales = msgspec.json.Decoder(_Scale)
_pod_lists = msgspec.json.Decoder(_PodList)
_failures = msgspec.json.Decoder(_Failure)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"the answer is not that of an API server of Kubernetes: {error}") from error


def _pod_count(scale: _Scale) -> PodCount:
    if scale.kind != SCALE_KIND or not scale.metadata.version or scale.spec.replicas < 0:
        raise PeerError(f"the answer is not that of an API server of Kubernetes: no {SCALE_KIND} with a version")
    return PodCount(scale.spec.replicas, scale.metadata.version, scale.status.selector)


def _reason(body: bytes) -> str:
    """` (message)`, to put behind a sentence; empty if the body has none."""
    try:
        message = _failures.decode(body).message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return f" ({message[:MESSAGE_CHARS_MAX]})"


def _token(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(TOKEN_BYTES_MAX + 1)
        token = content.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"planner.kubernetes.token_file: {file} cannot be read: {error}") from error
    if len(content) > TOKEN_BYTES_MAX or len(token.split()) != 1:
        raise CallerError(f"planner.kubernetes.token_file: {file} is not one word of {TOKEN_BYTES_MAX} bytes at most")
    return token
