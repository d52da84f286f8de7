"""Starts our processes fast: one that has loaded Celery, our app or the gateway forks them, on Linux.

Loading is what a start costs nearly alone, and tests start a thousand workers. A forked process has its own session,
directory, environment, path and output, and goes on as `python -m` would; before, nothing of ours has read the
environment or spoken with a server. What the interpreter itself reads of it at its start (`_AT_START`) is the same in
all that a template forks: where it is otherwise, another template is started.

The template is the parent, so it alone can ask how one ended. It ends when nobody can ask it any more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mosaic_queues.settings import settings

_LOADED = {
    ("-m", "celery", "-A", "mosaic_tasks.app"): (
        "celery.bin.celery",
        "celery.apps.worker",
        "mosaic_tasks.app",
        "mosaic_tasks.pool",
    ),
    ("-m", "celery", "-A"): ("celery.bin.celery", "celery.apps.worker", "kombu.transport.redis"),
    ("-m", "mosaic_tasks.cli", "serve"): (
        "mosaic_tasks.cli",
        "mosaic_tasks.gateway.serving",
        "mosaic_tasks.gateway.application",
    ),
}
"""How the commands begin that are forked, and the modules that each loads in any case; the first that fits counts."""
_AT_START = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ", "CELERY_")
"""How the variables begin that are read before a forked process could be told."""
_PATH = "PYTHONPATH"
_MOST_BYTES = 1 << 20
_templates: dict[tuple[tuple[str, ...], frozenset[tuple[str, str]]], Template] = {}
_choosing = threading.Lock()


def forked(
    command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, stderr: int | None = None
) -> Forked | None:
    """The process of a command, which leads its session; None where it cannot be forked.

    Args:
        stderr: a file descriptor; None: that of its stdout, a pipe.
    """
    words = tuple(command[1:])
    kind = next((kind for kind in _LOADED if words[: len(kind)] == kind), None)
    if sys.platform != "linux" or command[0] != sys.executable or kind is None:
        return None
    read = (
        (name, value) for name, value in environment.items() if name.startswith(_AT_START) and name != _PATH
    )
    key = kind, frozenset(read)
    with _choosing:
        template = _templates.get(key) or _templates.setdefault(key, Template(_LOADED[kind], environment))
    return template.fork(words, environment=environment, cwd=cwd, stderr=stderr)


def template_pids() -> frozenset[int]:
    """The processes that fork."""
    return frozenset(template.pid for template in _templates.values())


def end_templates() -> None:
    """Ends those, before the session does."""
    while _templates:
        _templates.popitem()[1].close()


class Forked:
    """A process of a template, with what tests use of `subprocess.Popen`.

    Attributes:
        stdout: its output, as text.
        returncode: how it ended, as far as was asked.
    """

    def __init__(self, template: Template, pid: int, output: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._template, self._alone = template, threading.Lock()
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """How it ended, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it ended; how it did, as `Popen` tells it.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        with self._alone:
            if self.returncode is None:
                if not select.select([self._fd], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                self.returncode = self._template.reap(self.pid)
                os.close(self._fd)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The process that forks.

    Args:
        modules: what it loads.
        environment: with which it starts.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._alone = threading.Lock()

    def fork(
        self, words: Sequence[str], *, environment: Mapping[str, str], cwd: Path, stderr: int | None
    ) -> Forked:
        """The process of `python WORDS`."""
        told = {"words": words, "environment": dict(environment), "cwd": str(cwd)}
        output, theirs = os.pipe()
        try:
            pid = self._ask(told, theirs, theirs if stderr is None else stderr)
        finally:
            os.close(theirs)
        return Forked(self, pid, output)

    def reap(self, pid: int) -> int:
        """How a process ended that it had forked, and that has ended."""
        return self._ask({"reap": pid})

    def _ask(self, question: Mapping[str, Any], *fds: int) -> int:
        with self._alone:
            socket.send_fds(self._channel, [json.dumps(question).encode()], fds)
            if not (answer := self._channel.recv(_MOST_BYTES)):
                raise ChildProcessError(f"the process that forks others ended: {self._process.wait()}")
            return int(answer)

    def close(self) -> None:
        """Ends it."""
        self._channel.close()
        self._process.wait()


# -- in the template --------------------------------------------------------------------------------------


def _load(names: Sequence[str]) -> list[str]:
    """Loads modules, and answers Python's own path, without what the environment adds to it."""
    added = os.environ.get(_PATH, "").split(os.pathsep)
    for name in names:
        import_module(name)
    assert threading.active_count() == 1, threading.enumerate()  # a fork has this thread alone
    assert settings.cache_info().currsize == 0, "loading our modules reads the environment"
    gc.freeze()
    return [entry for entry in sys.path[1:] if entry not in added]  # the first is the folder of this file


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Answers until nobody asks any more; in a forked process, ends at once with what that one is to be."""
    while True:
        question, fds, _, _ = socket.recv_fds(channel, _MOST_BYTES, 2)
        if not question:
            return None
        told: dict[str, Any] = json.loads(question)
        if "reap" in told:
            channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(told["reap"], 0)[1]))
        elif os.fork() == 0:
            os.setsid()
            channel.send(b"%d" % os.getpid())
            return {**told, "output": fds}
        for fd in fds:
            os.close(fd)


def _become(told: Mapping[str, Any], own_path: Sequence[str]) -> None:
    """Goes on as `python -m MODULE`."""
    for number, fd in enumerate(told["output"], 1):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.path[:] = [told["cwd"], *told["environment"].get(_PATH, "").split(os.pathsep), *own_path]
    _, module, *sys.argv[1:] = told["words"]
    sys.modules.pop(f"{module}.__main__", None)  # runpy warns where it is there
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        own_path = _load(sys.argv[2:])
        told = _serve(channel)
    if told is not None:
        _become(told, own_path)


if __name__ == "__main__":
    _main()
