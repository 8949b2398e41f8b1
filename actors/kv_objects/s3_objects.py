"""S3Objects: a bucket of S3, or of a store that speaks its protocol, as an `ObjectStore`.

The library is obstore, an extra of the package (`contrail[s3]`). Credentials are found by it: in the variables AWS_*,
by the roles of a machine, container or service account. They stand in no file of ours and in no log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from actors.kv_blocks.pool_folder import ObjectPlace
from actors.kv_objects.object_store import BUSY, DENIED, FAILED, TIMEOUT, ObjectStoreFailed, StoredObject
from core.errors import CallerError

CONNECT_S = 1.0
PAGE = 1000
DETAIL_MAX = 200
"""Characters of a failure's text."""
INSTALL = "a tier on S3 needs the package obstore: install contrail[s3]"
NO_BUCKET = "NoSuchBucket"
_STATUS = re.compile(r"status code: (\d{3})")
_REASONS = {"401": DENIED, "403": DENIED, "429": BUSY, "503": BUSY}

T = TypeVar("T")


class S3Objects:
    """See the module's text. Calls are not tried again: their callers know when that is of use."""

    def __init__(self, place: ObjectPlace, call_s: float) -> None:
        """Each call ends after `call_s`. CallerError if obstore is not installed, or the place is none. No I/O."""
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore.store import S3Store  # noqa: PLC0415
        except ImportError as error:
            raise CallerError(INSTALL) from error
        self._library: Any = obstore
        self._place = place
        options: Any = {
            "connect_timeout": timedelta(seconds=CONNECT_S),
            "timeout": timedelta(seconds=call_s),
        }
        more: dict[str, Any] = {}
        if place.endpoint:
            more["endpoint"] = place.endpoint
            options["allow_http"] = place.endpoint.startswith("http://")
        if place.region:
            more["region"] = place.region
        retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=call_s)}
        try:
            self._store = S3Store(
                place.bucket, prefix=place.prefix or None, client_options=options, retry_config=retries, **more
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise CallerError(f"the object store {place} cannot be used: {_detail(error)}") from error
        self._conditional = True
        """The store has conditional writes, as far as is known."""

    def __repr__(self) -> str:
        return f"<S3Objects {self._place}>"

    def get(self, key: str) -> bytes:
        """As the protocol has it; an object of many MB at once."""
        return self._made(lambda: bytes(self._library.get(self._store, key).bytes()))

    def has(self, key: str) -> bool:
        """As the protocol has it."""
        try:
            self._made(lambda: self._library.head(self._store, key))
        except FileNotFoundError:
            return False
        return True

    def put(self, key: str, content: bytes) -> None:
        """As the protocol has it."""
        self._made(lambda: self._put(key, content, "overwrite"))

    def create(self, key: str, content: bytes) -> bool:
        """As the protocol has it."""
        if self._conditional:
            try:
                self._made(lambda: self._put(key, content, "create"))
            except FileExistsError:
                return False
            except NotImplementedError:
                self._conditional = False
            else:
                return True
        if self.has(key):
            return False
        self.put(key, content)
        return True

    def delete(self, keys: Iterable[str]) -> None:
        """As the protocol has it; one call for each PAGE."""
        left = [*keys]
        while left:
            page, left = left[:PAGE], left[PAGE:]
            self._made(lambda page=page: self._library.delete(self._store, page))  # type: ignore[misc]

    def list(self, folder: str) -> Iterator[StoredObject]:
        """As the protocol has it."""
        pages = iter(self._made(lambda: self._library.list(self._store, folder, chunk_size=PAGE)))
        while page := self._made(lambda: next(pages, None)):
            for each in page:
                modified_ms = int(each["last_modified"].timestamp() * 1000)
                yield StoredObject(each["path"], each["size"], modified_ms, each["e_tag"] or "")

    def _no_bucket(self) -> ObjectStoreFailed:
        return ObjectStoreFailed(FAILED, f"there is no bucket {self._place.bucket}")

    def _put(self, key: str, content: bytes, mode: str) -> None:
        self._library.put(self._store, key, content, mode=mode, use_multipart=False)

    def _made(self, call: Callable[[], T]) -> T:
        """The call's result; its failure as the protocol has it. FileExistsError and NotImplementedError of a
        conditional write."""
        failures = self._library.exceptions
        try:
            return call()
        except FileNotFoundError as error:
            if NO_BUCKET in str(error):
                raise self._no_bucket() from None
            raise FileNotFoundError("there is no such object") from None
        except failures.AlreadyExistsError:
            raise FileExistsError from None
        except failures.NotSupportedError:
            raise NotImplementedError from None
        except failures.BaseError as error:
            text = str(error)
            if NO_BUCKET in text:
                raise self._no_bucket() from None
            status = _STATUS.search(text)
            if status and status[1] == "501":
                raise NotImplementedError from None
            raise ObjectStoreFailed(_reason(error, text, failures, status), _detail(error)) from None
        except OSError as error:
            raise ObjectStoreFailed(FAILED, _detail(error)) from None


def _reason(error: Exception, text: str, failures: Any, status: re.Match[str] | None) -> str:
    if isinstance(error, failures.PermissionDeniedError | failures.UnauthenticatedError):
        return DENIED
    if status:
        return _REASONS.get(status[1], FAILED)
    return TIMEOUT if "kind: Timeout" in text else FAILED


def _detail(error: Exception) -> str:
    """The first line, without what a URL may ask for."""
    line = str(error).partition("\n")[0].partition("<?xml")[0]
    return re.sub(r"\?\S*", "", line)[:DETAIL_MAX]
