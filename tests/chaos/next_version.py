"""The next version of Contrail, made from this one: a copy of the packages that writes and folds something more.

1. One event has a new field, and its writer fills it: `BlocksStored.origin`.
2. One new event type stands in the kv stream, from its workers, and one in the routing stream, from its replicas.
3. The fold is another: FOLD_VERSION is one higher, and digests are mixed with another constant.

What is changed is appended to the copied modules, so that this holds while they are rewritten.
"""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGES = ("core", "streams", "projections", "actors", "replay", "api")
ROOT = Path(__file__).resolve().parents[2]

FIELD = (
    "    parent: int | None = None\n",
    '    parent: int | None = None\n    origin: str = msgspec.field(default_factory=lambda: "engine")\n',
)
IMPORT = ("from __future__ import annotations\n", "from __future__ import annotations\n\nimport msgspec\n")
EVENTS = '''

from core.events.base import EventBase


class CacheMeasured(EventBase, frozen=True):
    """New in the next version: in the kv stream."""

    hits: int


class RouterMeasured(EventBase, frozen=True):
    """New in the next version: in the routing stream."""

    decisions: int


KvEvent = KvEvent | CacheMeasured
RoutingEvent = RoutingEvent | RouterMeasured
Event = Event | CacheMeasured | RouterMeasured
EVENT_TYPES |= {"CacheMeasured": CacheMeasured, "RouterMeasured": RouterMeasured}
'''
FOLD = """

FOLD_VERSION += 1
_mix_before = mix


def mix(*values: object) -> int:
    return _mix_before("next", *values)

"""
STAMP = """

_stamp_before = stamp


def stamp(chain, identity):
    return _stamp_before(chain, identity) ^ 0x5EED
"""
SKIPS = """

from core.events import CacheMeasured, RouterMeasured

_event_before = {name}._event


def _event_next(self, part, event, *more):
    if not isinstance(event, CacheMeasured | RouterMeasured):
        _event_before(self, part, event, *more)


{name}._event = _event_next
"""
WORKER_SPEAKS = """

from core.events import CacheMeasured

_report_before = WorkerPublisher.report


def _report_next(self, report):
    self.kv.put(CacheMeasured(hits=1))
    return _report_before(self, report)


WorkerPublisher.report = _report_next
"""
REPLICA_SPEAKS = """

from core.events import RequestRouted, RouterMeasured

_publish_before = RoutingPublisher.publish


def _publish_next(self, event):
    _publish_before(self, event)
    if isinstance(event, RequestRouted):
        self.outbox.put(RouterMeasured(decisions=1))


RoutingPublisher.publish = _publish_next
"""
APPENDED = {
    "core/events/__init__.py": EVENTS,
    "projections/digest.py": FOLD,
    "projections/folds/source_fold.py": STAMP,
    "projections/folds/kv_fold.py": SKIPS.format(name="KvFold"),
    "projections/folds/routing_fold.py": SKIPS.format(name="RoutingFold"),
    "actors/membership/worker_publisher.py": WORKER_SPEAKS,
    "actors/membership/routing_publisher.py": REPLICA_SPEAKS,
}


def make_next_version(folder: Path) -> Path:
    """The folder holds the packages of the next version; named first in PYTHONPATH, they are what runs."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    events = folder / "core" / "events" / "kv.py"
    text = events.read_text()
    assert text.count(FIELD[0]) == 1, "BlocksStored is not what this was written for"
    events.write_text(text.replace(*FIELD).replace(*IMPORT))
    for name, more in APPENDED.items():
        path = folder / name
        path.write_text(path.read_text() + more)
    return folder
