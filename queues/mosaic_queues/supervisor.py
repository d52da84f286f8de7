"""The process that keeps one embedded server alive while somebody uses it, and stops it after the last user.

It runs as `python -I -S supervisor.py BINARY DIRECTORY SOCKET` and imports nothing but the standard library,
so that it is up in some ten milliseconds. `mosaic_queues.server` is its only caller.

Who lives is told by flock(2) locks in DIRECTORY, which the kernel drops when a process dies, however it dies:

| file | held by | means |
|---|---|---|
| `users.lock` | every user, shared, for its lifetime (forked children included) | somebody needs the server |
| `supervisor.lock` | the supervisor, exclusive | somebody restarts and stops the server |
| `server.lock` | both, exclusive, one open file that the server inherits | the data is in use |
| `start.lock` | whoever joins, starts or stops, exclusive, for moments | the three above do not change |

A user joins under `start.lock`; the supervisor looks for users, and stops, under `start.lock`. So nobody can
join a server that is being stopped, and no server is stopped that somebody has just joined.

When the supervisor itself is killed, the kernel stops the server with it (Linux: parent-death signal), and
the users' watchers (`mosaic_queues.server`) start both again. On systems without that signal the server goes
on until the next supervisor shuts it down and takes over.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

START_LOCK = "start.lock"
USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "supervisor.lock"
SERVER_LOCK = "server.lock"
LOG = "server.log"

READY = "ready"
OTHER = "other"

_POLL_S = 0.5
_LINGER_S = 1.0
_TAKEOVER_S = 10.0
_STOP_S = 30.0
_STEADY_S = 5.0
_MAX_QUICK_DEATHS = 6
_LOG_BYTES = 1_000_000
_PR_SET_PDEATHSIG = 1


def open_lock(directory: str, name: str) -> int:
    """Open a lock file for `try_lock`; the descriptor is closed in programs that this process executes."""
    return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the lock now, or answer False."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(fd: int, seconds: float) -> bool:
    """Take the exclusive lock, waiting at most so long."""
    deadline = time.monotonic() + seconds
    while not try_lock(fd):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def unlock(fd: int) -> None:
    """Drop the lock and close its file, also when a child that was forked meanwhile still has it open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def ask(socket_path: str, command: bytes, *, timeout_s: float = 1.0) -> bytes:
    """Send one inline command to the server and return the start of its answer; empty when nobody answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(socket_path)
            connection.sendall(command + b"\r\n")
            return connection.recv(256)
        except OSError:
            return b""


def is_serving(socket_path: str) -> bool:
    """Whether a server answers there and has loaded its data."""
    return ask(socket_path, b"PING").startswith(b"+PONG")


def log_tail(directory: str, *, lines: int = 5) -> str:
    """The last lines of the server's log, as one line; empty when there is none."""
    try:
        with open(os.path.join(directory, LOG), "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 4_096))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


class _Server:
    """The server as a child process of the supervisor."""

    def __init__(self, binary: str, directory: str, socket_path: str, lock_fd: int) -> None:
        self._arguments = [binary, *_options(directory, socket_path)]
        self._lock_fd = lock_fd
        self._bind_to_parent = _parent_death_binder()
        self.pid = 0
        self.started_at = 0.0

    def start(self) -> None:
        self.started_at = time.monotonic()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become_server(parent)
            finally:
                os._exit(127)

    def _become_server(self, parent: int) -> None:
        self._bind_to_parent()
        if os.getppid() != parent:
            return
        os.set_inheritable(self._lock_fd, True)
        environment = {**os.environ, "LC_ALL": "C"}
        os.execve(self._arguments[0], self._arguments, environment)  # noqa: S606 - our own binary, no shell

    def has_died(self) -> bool:
        """Whether the process has ended; reaps it."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return self.pid == 0

    def stop(self) -> None:
        """Ask the server to write what it holds and exit; kill it when it does not: its file has the data."""
        deadline = time.monotonic() + _STOP_S
        if not self.has_died():
            os.kill(self.pid, signal.SIGTERM)
        while not self.has_died():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)


def _options(directory: str, socket_path: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": socket_path,
        "unixsocketperm": "700",
        "dir": directory,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def _parent_death_binder() -> Callable[[], object]:
    """What a child calls to be stopped when its parent dies; does nothing where the system cannot."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    import ctypes  # only here is it needed, and it would slow down every import of this module

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


class Supervisor:
    """Starts the server, restarts it when it dies, stops it after its last user.

    Args:
        binary: the server program.
        directory: absolute path of the server's own directory.
        socket_path: where the server listens.
    """

    def __init__(self, binary: str, directory: str, socket_path: str) -> None:
        self._directory = directory
        self._socket_path = socket_path
        self._own_fd = open_lock(directory, SUPERVISOR_LOCK)
        self._start_fd = open_lock(directory, START_LOCK)
        self._users_fd = open_lock(directory, USERS_LOCK)
        self._server_fd = open_lock(directory, SERVER_LOCK)
        self._server = _Server(binary, directory, socket_path, self._server_fd)
        self._quick_deaths = 0
        self._restart_at: float | None = None
        self._unused_since: float | None = None
        self._stopping = False
        self._wakeup_fd = self._listen_to_signals()

    def start(self) -> str:
        """Take over the directory and start the server; return `READY`, `OTHER`, or what went wrong."""
        outcome = self._start()
        self._stopping = outcome != READY
        return outcome

    def run(self) -> None:
        """Keep the server alive until its last user has gone."""
        while not self._stopping:
            self._pause()
            self._tend()
            self._look_for_users()
        self._server.stop()

    def _start(self) -> str:
        if not lock_within(self._own_fd, 1.0):
            return OTHER
        if not self._take_over():
            return f"another server holds {self._directory!r} and does not stop"
        self._server.start()
        return self._await_ready()

    def _listen_to_signals(self) -> int:
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return reader

    def _on_term(self, *_: object) -> None:
        self._stopping = True

    def _pause(self) -> None:
        if select.select([self._wakeup_fd], [], [], _POLL_S)[0]:
            os.read(self._wakeup_fd, 512)

    def _take_over(self) -> bool:
        """Hold the data alone: a server whose supervisor was killed is asked to leave first."""
        if try_lock(self._server_fd):
            return True
        ask(self._socket_path, b"SHUTDOWN NOW", timeout_s=_TAKEOVER_S)
        return lock_within(self._server_fd, _TAKEOVER_S)

    def _await_ready(self) -> str:
        while not is_serving(self._socket_path):
            if self._server.has_died():
                return f"the server ended at once: {log_tail(self._directory) or 'it wrote no log'}"
            if self._stopping:
                return "the supervisor was told to stop"
            time.sleep(0.002)
        return READY

    def _tend(self) -> None:
        """Restart a dead server, later each time when it dies soon after its start."""
        if not self._server.has_died():
            return
        now = time.monotonic()
        if self._restart_at is None:
            self._restart_at = now + self._delay(now - self._server.started_at)
        if not self._stopping and now >= self._restart_at:
            self._restart_at = None
            self._server.start()

    def _delay(self, lived_s: float) -> float:
        self._quick_deaths = self._quick_deaths + 1 if lived_s < _STEADY_S else 0
        _log(f"the server ended after {lived_s:.1f} s")
        if self._quick_deaths >= _MAX_QUICK_DEATHS:
            _log(f"giving up: it ended {self._quick_deaths} times within {_STEADY_S:.0f} s of its start")
            self._stopping = True
        return 0.0 if self._quick_deaths < 2 else min(0.1 * 2.0**self._quick_deaths, 5.0)

    def _look_for_users(self) -> None:
        """Stop when nobody has used the server for the linger time, or when its directory is gone."""
        if self._is_homeless():
            self._stopping = True
        elif not try_lock(self._start_fd):
            self._unused_since = None
        elif not self._is_unused():
            fcntl.flock(self._start_fd, fcntl.LOCK_UN)

    def _is_unused(self) -> bool:
        """Whether to stop now; then `start.lock` stays held until this process has ended."""
        if not try_lock(self._users_fd):
            self._unused_since = None
            return False
        fcntl.flock(self._users_fd, fcntl.LOCK_UN)
        now = time.monotonic()
        self._unused_since = self._unused_since or now
        self._stopping = self._stopping or now - self._unused_since >= _LINGER_S
        return self._stopping

    def _is_homeless(self) -> bool:
        try:
            found = os.stat(os.path.join(self._directory, SUPERVISOR_LOCK))
        except OSError:
            return True
        return not os.path.samestat(found, os.fstat(self._own_fd))


def _log(message: str) -> None:
    stamp = time.strftime("%d %b %Y %H:%M:%S")
    os.write(2, f"{os.getpid()}:supervisor {stamp} {message}\n".encode())


def _open_log(directory: str) -> int:
    path = os.path.join(directory, LOG)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(path, flags, 0o600)
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    return log


def main(arguments: list[str]) -> None:
    """Detach from the caller, start the server, report on stdout, stay until the last user is gone."""
    binary, directory, socket_path = arguments
    if os.fork():
        os._exit(0)
    report = os.dup(1)
    log = _open_log(directory)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir(directory)
    os.umask(0o077)
    supervisor = Supervisor(binary, directory, socket_path)
    outcome = supervisor.start()
    try:
        os.write(report, f"{outcome}\n".encode())
    except BrokenPipeError:
        _log("the process that started this one has gone")
    os.close(report)
    supervisor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
