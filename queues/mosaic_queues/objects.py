"""The store for payloads too large for the server: a local directory, or any object store by URL."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from mosaic_queues.errors import ConfigurationError, PayloadCorrupt, PayloadError
from mosaic_queues.settings import settings

if TYPE_CHECKING:
    import redis

_FORKED_ADVICE = "use the solo or threads pool for it, or do not touch the store before the workers fork"


class ObjectStore(Protocol):
    """Where large payloads lie. Keys are `run_id/hash`; a key is written once, whole or not at all."""

    def put(self, key: str, data: bytes) -> None:
        """Store the bytes; a reader sees all of them or none."""

    def get(self, key: str) -> bytes:
        """The bytes of a key. Raises PayloadCorrupt when there are none."""

    def delete_prefix(self, prefix: str) -> None:
        """Delete the keys `prefix/...`; none is no error."""


class LocalObjects:
    """Objects as files of a directory that only its owner may enter, safe to use in forked processes.

    (obstore has a local store too, but after a fork its runtime hangs, and Celery's default pool forks.)

    Args:
        root: the directory; made with the first object.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(root).expanduser().absolute()

    def put(self, key: str, data: bytes) -> None:
        """Write a file beside the final one and rename it."""
        path = self._path(key)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(partial, data)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise PayloadError(
                f"cannot write {len(data)} bytes to {str(path)!r} ({error}); free space there, or set "
                "MOSAIC_HOME or MOSAIC_OBJECT_STORE to another place"
            ) from error

    def get(self, key: str) -> bytes:
        """Read a whole file."""
        path = self._path(key)
        try:
            return path.read_bytes()
        except OSError as error:
            raise _gone(key, str(self._root), error) from error

    def delete_prefix(self, prefix: str) -> None:
        """Delete a run's folder."""
        path = self._path(prefix)
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PayloadError(f"cannot delete {str(path)!r} ({error}); check its permissions") from error

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(part.strip(".") and "\0" not in part and os.sep not in part for part in parts):
            raise PayloadError(f"{key!r} is no key of an object; a key is run_id/hash")
        return self._root.joinpath(*parts)


class RemoteObjects:
    """Objects in S3, GCS, Azure or another store that obstore reaches by URL, with the credentials it finds.

    Args:
        url: such as `s3://bucket/prefix`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: Any = None
        self._pid = 0

    def put(self, key: str, data: bytes) -> None:
        """Upload the bytes, in parts when they are many."""
        try:
            self._store().put(key, data)
        except self._errors() as error:
            raise self._refused("write", key, error) from error

    def get(self, key: str) -> bytes:
        """Download the bytes."""
        try:
            return bytes(self._store().get(key).bytes())
        except FileNotFoundError as error:
            raise _gone(key, _place(self._url), error) from error
        except self._errors() as error:
            raise self._refused("read", key, error) from error

    def delete_prefix(self, prefix: str) -> None:
        """Delete page by page."""
        store = self._store()
        try:
            for page in store.list(f"{prefix}/"):
                store.delete([entry["path"] for entry in page])
        except FileNotFoundError:
            return
        except self._errors() as error:
            raise self._refused("delete", prefix, error) from error

    def _store(self) -> Any:
        if self._opened is None:
            self._opened, self._pid = _open(self._url), os.getpid()
        if self._pid != os.getpid():
            raise PayloadError(
                f"the object store {_place(self._url)!r} was used by process {self._pid} before it forked "
                f"this one, where its runtime cannot work; {_FORKED_ADVICE}"
            )
        return self._opened

    @staticmethod
    def _errors() -> tuple[type[Exception], ...]:
        from obstore.exceptions import BaseError  # costs 30 ms, paid only where it is used

        return (BaseError, OSError)

    def _refused(self, verb: str, key: str, error: Exception) -> PayloadError:
        return PayloadError(
            f"cannot {verb} {key!r} in the object store {_place(self._url)!r}: {_first_line(error)}; check "
            "MOSAIC_OBJECT_STORE, its credentials and the network"
        )


def open_objects(url: str | None = None) -> ObjectStore:
    """The object store at a URL; `settings().object_store` when None, else `settings().home/objects`.

    Nothing is contacted or created before the first use.

    Raises:
        ConfigurationError: it is no URL.
    """
    chosen = url or settings().object_store
    if chosen is None:
        return LocalObjects(settings().home / "objects")
    parts = urlsplit(chosen)
    if parts.scheme == "file" and parts.path:
        return LocalObjects(Path(unquote(parts.path)))
    if not parts.scheme or len(parts.scheme) == 1:
        raise ConfigurationError(
            f"{chosen!r} is no URL of an object store; set MOSAIC_OBJECT_STORE to s3://bucket/prefix, "
            "file:///directory or another URL that obstore knows, or unset it"
        )
    return RemoteObjects(chosen)


def stored_key(namespace: str) -> str:
    """The sorted set of runs that have objects, by the time (ms) when these may be deleted."""
    return f"{namespace}:stored"


def stored_bytes_key(namespace: str) -> str:
    """The sorted set of what the objects of runs take, in bytes."""
    return f"{namespace}:stored_bytes"


def expire_objects(
    client: redis.Redis,
    now_s: float | None = None,
    *,
    namespace: str | None = None,
    objects: ObjectStore | None = None,
    limit: int = 100,
) -> int:
    """Delete the objects of runs whose time has passed; return how many runs.

    The registration goes after the objects, so that a crash between leaves work to do again and no orphan.

    Args:
        client: of the server that holds the registrations.
        now_s: seconds since the epoch; the clock when None.
        namespace: the prefix of the keys; that of the settings when None.
        objects: where they lie; the settings' when None.
        limit: how many runs at most.
    """
    space = namespace or settings().namespace
    key = stored_key(space)
    now_ms = int((time.time() if now_s is None else now_s) * 1e3)
    store = objects or open_objects()
    expired = client.zrangebyscore(key, "-inf", now_ms, start=0, num=limit)
    for run_id in cast("list[bytes]", expired):
        store.delete_prefix(run_id.decode())
        client.zrem(stored_bytes_key(space), run_id)
        client.zrem(key, run_id)
    return len(expired)


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _open(url: str) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        return from_url(url)
    except (BaseError, ValueError) as error:
        reason = _first_line(error).replace(url, _place(url))
        raise ConfigurationError(f"MOSAIC_OBJECT_STORE {_place(url)!r} cannot be used: {reason}") from None


def _place(url: str) -> str:
    """The URL without user, password and options, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _gone(key: str, place: str, error: Exception) -> PayloadCorrupt:
    return PayloadCorrupt(
        f"the object {key!r} cannot be read from {place!r} ({_first_line(error)}): expired, deleted, or on "
        "another machine's directory; workers on several machines need one MOSAIC_OBJECT_STORE"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
