"""A store on S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import threading
import time
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from nsqtools.errors import ConfigError
from nsqtools.stores.interface import Store, StoredFile, reason
from nsqtools.stores.places import s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from nsqtools.stores.interface import Data

log = logging.getLogger(__name__)

T = TypeVar("T")

_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
# Retries of requests, in seconds: refused connections are retried for at most half a minute.
_RETRIES = 8
_LONGEST_PAUSE = 4.0
_TEMPORARY = "(temporary)"
"""Marks an error as worth retrying in opendal's texts."""
_TOO_SHORT = "too little data"
_TIMEOUT = 10.0
_IO_TIMEOUT = 60.0
_LIST_TIMEOUT = 5.0
_SLOW = 5.0
"""Seconds without a response after which the log says so, once until the store responds again."""
_PART = 8 << 20

_AWS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a role that may do this"
_AZURE = "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or give a role that may do this"
_CREDENTIALS = {
    "gs": "GOOGLE_APPLICATION_CREDENTIALS to the file of an account that may do this",
    **dict.fromkeys((*_AZURE_SCHEMES, "az"), _AZURE),
}
_UNSIGNED = "failed to load signing credential"
_DENIED = "PermissionDenied"
_ACCOUNT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")


class ObjectStore(Store):
    """A Store on S3, Google Cloud Storage or Azure, through opendal.

    ``operator`` is an opendal.Operator rooted at the place. ``lister`` is an Operator for listings.
    During a listing opendal blocks all threads of the process. So listings have shorter timeouts,
    and are retried here, after ``pauses`` in seconds: a pause lets signals be handled.
    """

    def __init__(
        self, place: str, operator: Any, lister: Any, pauses: Sequence[float] = ()
    ) -> None:
        super().__init__(place)
        self._operator = operator
        self._lister = lister
        self._pauses = pauses
        self._is_slow = False

    def put_if_absent(self, path: str, data: Data) -> bool:
        """PUT with ``If-None-Match: *``.

        A refusal may follow a lost response, so the content shows whose object exists.
        """
        from opendal.exceptions import AlreadyExists, ConditionNotMatch, Conflict

        content = bytes(data)
        for attempt in range(_RETRIES):
            try:
                self._do(path, self._operator.write, path, content, if_not_exists=True)
                return True
            except (AlreadyExists, ConditionNotMatch):
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    return self.get(path) == content
                return False
            except Conflict:  # S3: another conditional PUT of this name is under way
                time.sleep(min(_LONGEST_PAUSE, 0.05 * 2**attempt))
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self.url(path))

    def get(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """GET."""
        read = partial(self._do, path, self._operator.read, path, offset=start or None)
        try:
            return bytes(read(size=size))
        except OSError as error:
            if _TOO_SHORT in str(error):  # opendal reads nothing of a shorter file
                return bytes(read())
            raise

    def list(self, path: str) -> list[str]:
        """Return the names at one level."""
        found = [each.path.rstrip("/") for each in self._do(path, self._entries, path)]
        return [each.rpartition("/")[2] for each in found if each != path]

    def files(self, path: str = "") -> Iterator[StoredFile]:
        """Yield all objects with a prefix."""
        for each in self._do(path, self._entries, path, recursive=True):
            if not each.path.endswith("/"):
                yield _facts(each.path, each.metadata)

    def _entries(self, path: str, **options: bool) -> Sequence[Any]:
        for pause in self._pauses:
            try:
                return list(self._lister.list(f"{path}/" if path else "", **options))
            except Exception as error:
                if _TEMPORARY not in str(error):
                    raise
            time.sleep(pause)
        return list(self._lister.list(f"{path}/" if path else "", **options))

    def stat(self, path: str) -> StoredFile:
        """HEAD."""
        return _facts(path, self._do(path, self._operator.stat, path))

    def delete(self, path: str) -> None:
        """Delete an object, and all objects below its name."""
        self._do(path, self._operator.delete, path)
        self._do(path, self._operator.delete, f"{path}/", recursive=True)

    @contextlib.contextmanager
    def create(self, path: str, *, replace: bool = True) -> Iterator[BinaryIO]:
        """PUT in parts; the object exists only after the last request, sent by close.

        Without ``replace`` the last request has ``If-None-Match: *``, or, at Google, the first
        request has ``ifGenerationMatch=0``. The parts of a failed writer stay until the bucket's
        rules remove them.
        """
        from opendal.exceptions import AlreadyExists, ConditionNotMatch

        condition = {} if replace else {"if_not_exists": True}
        file = self._do(path, self._operator.open, path, "wb", chunk=_PART, **condition)
        yield cast("BinaryIO", _Parts(partial(self._do, path, file.write)))
        try:
            self._do(path, file.close)
        except (AlreadyExists, ConditionNotMatch) as error:
            raise FileExistsError(errno.EEXIST, reason(error), self.url(path)) from error

    def _do(self, path: str, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call in a thread, because neither signals nor deadlines interrupt opendal.

        Raises OSError, and opendal's errors of conditional requests. After a timeout the call
        continues in its thread.
        """
        from opendal import exceptions

        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="object-store", daemon=True).start()
        try:
            return self._response(future)
        except (exceptions.AlreadyExists, exceptions.ConditionNotMatch, exceptions.Conflict):
            raise
        except exceptions.NotFound as error:
            text = reason(error)
            text = os.strerror(errno.ENOENT) if text.startswith(("NotFound", "HTTP")) else text
            raise FileNotFoundError(errno.ENOENT, text, self.url(path)) from error
        except TimeoutError as error:
            text = f"no response within {self.patience:g} seconds"
            raise OSError(errno.ETIMEDOUT, text, self.url(path)) from error
        except Exception as error:
            if not _is_opendals(error):
                raise
            text = reason(error)
            kind = str(error).partition(" ")[0]
            refused = kind == _DENIED or _UNSIGNED in str(error)
            if refused:
                text += f": set {_CREDENTIALS.get(urlsplit(self.place).scheme, _AWS)}"
            code = errno.EACCES if refused else errno.EIO
            raise OSError(code, text, self.url(path)) from error

    def _response(self, future: Future[T]) -> T:
        """Wait for the response. Raises TimeoutError, and errors of the request.

        A user who waits as long as the requests are repeated learns for what.
        """
        if self.patience is None:
            wait([future], _SLOW)
            if not future.done() and not self._is_slow:
                self._is_slow = True
                log.warning("%s: no response for %g s: still trying", self.place, _SLOW)
        result = future.result(self.patience)
        if self._is_slow:
            self._is_slow = False
            log.warning("%s: responds again", self.place)
        return result


def open_objects(place: str, flag: str, retries: int | None) -> ObjectStore | None:
    """Return the store of a URL; None for an unknown service. Raises ConfigError."""
    parts = urlsplit(place)
    for name in [name for name, value in os.environ.items() if name[:4] == "AWS_" and not value]:
        del os.environ[name]  # AWS's own programs ignore empty variables, opendal does not
    if parts.scheme.lower() == "az" and not any(map(os.environ.get, _ACCOUNT)):
        raise ConfigError(f"{flag} {place}: set {_ACCOUNT[0]} to the name of the account")
    service = _service(parts.scheme.lower(), parts.netloc)
    if service is None:
        return None
    if not parts.netloc:
        raise ConfigError(f"{flag} {place}: no bucket: expected {parts.scheme}://BUCKET/PATH")
    try:
        from opendal import Operator
        from opendal.layers import RetryLayer, TimeoutLayer
    except ImportError:
        raise ConfigError(
            f"{flag} {place}: opendal is not installed: install nsqtools[cloud]; for a pipeline, "
            "on the driver and every executor"
        ) from None
    try:
        operator = Operator(**service, root=parts.path or "/")
    except Exception as error:
        raise ConfigError(f"{flag} {place}: {reason(error)}") from error
    attempts = _RETRIES if retries is None else retries
    again = RetryLayer(max_times=attempts, max_delay=_LONGEST_PAUSE, min_delay=0.1, jitter=True)

    patient = operator.layer(TimeoutLayer(timeout=_TIMEOUT, io_timeout=_IO_TIMEOUT)).layer(again)
    lister = operator.layer(TimeoutLayer(timeout=_LIST_TIMEOUT, io_timeout=_LIST_TIMEOUT))
    pauses = [min(_LONGEST_PAUSE, 0.1 * 2**attempt) for attempt in range(attempts)]
    return ObjectStore(place, patient, lister, pauses)


def _service(scheme: str, authority: str) -> dict[str, str] | None:
    """Return the arguments of an opendal.Operator; None for an unknown service.

    Credentials come from the environment of each process, or from the role of its machine:

    * S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE; beside them
      AWS_REGION, AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_S3.
    * Google Cloud Storage: GOOGLE_APPLICATION_CREDENTIALS, the path of a key file.
    * Azure: AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_KEY), AZURE_STORAGE_SAS_TOKEN, or
      AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET. A URL of az does not name the
      account, and needs AZURE_STORAGE_ACCOUNT_NAME (or AZURE_STORAGE_ACCOUNT) too.
    """
    variable = os.environ.get
    name, _, host = authority.rpartition("@")
    if scheme in ("s3", "s3a", "s3n"):
        endpoint, region = s3_server()
        service = {"scheme": "s3", "bucket": authority, "region": region or "us-east-1"}
        return service | ({"endpoint": endpoint} if endpoint else {})
    if scheme == "gs":
        return {"scheme": "gcs", "bucket": authority}
    if scheme == "az":
        account = next(filter(None, map(variable, _ACCOUNT)), "")
        name, host = authority, f"{account}.blob.core.windows.net"
    if scheme in (*_AZURE_SCHEMES, "az") and name:
        account, _, domain = host.partition(".")
        endpoint = f"https://{account}.{domain.replace('dfs', 'blob', 1)}"
        service = {"scheme": "azblob", "container": name, "endpoint": endpoint}
        given = {
            "account_name": account,
            "account_key": variable("AZURE_STORAGE_ACCOUNT_KEY") or variable("AZURE_STORAGE_KEY"),
            "sas_token": variable("AZURE_STORAGE_SAS_TOKEN"),
        }
        return service | {key: value for key, value in given.items() if value}
    return None


def _is_opendals(error: Exception) -> bool:
    """Whether opendal raised the error.

    Its exceptions have no base class, and its files raise OSError without a number.
    """
    of_file = isinstance(error, OSError) and error.errno is None
    return of_file or type(error).__module__.startswith("opendal")


def _facts(path: str, found: Any) -> StoredFile:
    """Return path, size and time, in whole seconds: only S3's listings have fractions."""
    changed = found.last_modified
    seconds = int(changed.timestamp()) if changed else 0
    return StoredFile(path, found.content_length, seconds * 10**9)


class _Parts(io.RawIOBase):
    """A writable view of an opendal file; the writer cannot close, and so complete, the file."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._write(bytes(data))
        self._length += len(data)
        return len(data)

    def tell(self) -> int:
        return self._length
