"""Where reports go: a folder, or an object store by URL. A file is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from mosaic_queues.errors import ConfigurationError, InputError


class Place(Protocol):
    """Files by their names, which may have folders in them: `items/00001-shop.html`."""

    def where(self, name: str) -> str:
        """The path or URL of a file, for people: without credentials."""

    def holds(self, name: str) -> bool:
        """Whether there is such a file."""

    def writing(self, name: str) -> AbstractContextManager[Path]:
        """A path to write to; at the end of the context it becomes the file, in one step."""

    def delete(self, name: str) -> None:
        """Deletes a file, if it is there."""


class Folder:
    """A directory; made with its first file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def where(self, name: str) -> str:
        """Below the directory, as that was given."""
        return str(self._root / name)

    def holds(self, name: str) -> bool:
        """Looks for the file."""
        return (self._root / name).is_file()

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A file beside, which is renamed; one that an earlier try left there goes with it."""
        path = self._root / name
        fresh = path.with_name(f".{path.name}.fresh")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield fresh
            fresh.replace(path)
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
        finally:
            with suppress(OSError):  # what keeps it from being written may keep it from being deleted
                fresh.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Unlinks it."""
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot delete {str(path)!r}: {error.strerror or error}") from error


class Store:
    """An object store that obstore reaches by URL, with the credentials that it finds.

    Args:
        url: such as `s3://bucket/prefix`.
        work: a directory for what is on its way.

    Raises:
        ConfigurationError: it is no URL of a store.
    """

    def __init__(self, url: str, *, work: Path) -> None:
        parts = urlsplit(url)
        self._name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self._work = work
        self._store = self._opened(url)

    def _opened(self, url: str) -> Any:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            return from_url(url, mkdir=True) if url.startswith("file:") else from_url(url)
        except (BaseError, ValueError, TypeError, OSError) as error:
            reason = _first_line(error).replace(url, self._name)
            raise ConfigurationError(f"{self._name!r} cannot be used as an object store: {reason}") from None

    def where(self, name: str) -> str:
        """Below the URL."""
        return f"{self._name}/{name}"

    def holds(self, name: str) -> bool:
        """Asks for its head."""
        with self._told("read", name):
            try:
                self._store.head(name)
            except FileNotFoundError:
                return False
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """A local file, which is uploaded, in parts when it is large."""
        fresh = self._work / f"{name.replace('/', '-')}.fresh"
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            yield fresh
            with self._told("write", name):
                self._store.put(name, fresh)
        except OSError as error:
            raise InputError(f"cannot write {str(fresh)!r}: {error.strerror or error}") from error
        finally:
            with suppress(OSError):  # what keeps it from being written may keep it from being deleted
                fresh.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Deletes it."""
        with self._told("delete", name):
            try:
                self._store.delete(name)
            except FileNotFoundError:
                return

    def fetch(self, name: str, to: Path) -> None:
        """Downloads a file, piece by piece; where there is none, or another process was faster, nothing is made."""
        fresh = to.with_name(f".{to.name}.{os.getpid()}.fresh")
        with self._told("read", name):
            try:
                pieces = self._store.get(name).stream()
            except FileNotFoundError:
                return
            try:
                with fresh.open("wb") as file:
                    for piece in pieces:
                        file.write(bytes(piece))
                with suppress(FileExistsError):
                    os.link(fresh, to)
            except OSError as error:
                raise InputError(f"cannot write {str(to)!r}: {error.strerror or error}") from error
            finally:
                with suppress(OSError):
                    fresh.unlink(missing_ok=True)

    @contextmanager
    def _told(self, verb: str, name: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise InputError(
                f"cannot {verb} {name!r} in {self._name!r}: {_first_line(error)}; check the URL, the credentials and "
                "the network"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
