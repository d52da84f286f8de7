"""Fails a test that leaves a process, a thread, a file or a key behind, and a session that leaves strays.

After each test: no new child process, no new non-daemon thread and no thread of ours (`mosaic-*`), nothing
new in the working directory, and in the test server no key of ours without an expiry. What ends by itself
within moments is no leak. A test that must leave something says so:
`@pytest.mark.leaves("keys", reason="...")`.

After the session: no process that a test started and nobody owns any more, and no new file in the repository.
The latter fails a run only in continuous integration, since people edit files while tests run. Where processes share
the tests (`pytest -n`), this is for the one that started them, when they have ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pytest
from redis import Redis

from tests.forking import end_templates, template_pids
from tests.services import SESSION_VARIABLE, session_name

Kind = Literal["processes", "threads", "files", "keys"]
GRACE_S = 3.0
_CACHES = frozenset({".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
_DEMO = "out"  # where `make demo` writes, as a test does while other processes run theirs
# Its members carry their own expiry as score, and every sweep drops the expired ones.
_REGISTRIES = frozenset({b"mosaic:holders", b"mosaic:stored"})
_files_before = pytest.StashKey[frozenset[str]]()
_session_leaks = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Snapshot:
    """What this process has at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    directory: str
    files: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        """Look around. Only direct children: whoever owns a child owns what that one starts."""
        return cls(
            processes=frozenset(_children()),
            threads=frozenset(threading.enumerate()),
            directory=os.getcwd(),
            files=frozenset(os.listdir()) - _CACHES - {_DEMO},
        )


def _children() -> Iterator[psutil.Process]:
    """Our processes, and what the templates forked for us; what ended is nobody's."""
    for child in psutil.Process().children():
        if child.pid not in template_pids():
            yield child
        else:
            yield from (each for each in child.children() if each.status() != psutil.STATUS_ZOMBIE)


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    uses_server = "redis_server" in request.fixturenames
    client: Redis | None = request.getfixturevalue("redis_server").client if uses_server else None
    before = Snapshot.take()
    yield
    found = leaks_since(before)
    if client is not None:
        found["keys"] = permanent_keys(client)
        gc.collect()  # a connection that nobody closed warns when collected: here, not in a later test
    allowed = {kind for marker in request.node.iter_markers("leaves") for kind in marker.args}
    messages = [f"{kind}: {', '.join(what)}" for kind, what in found.items() if what and kind not in allowed]
    if client is not None:
        client.flushdb()
    if messages:
        pytest.fail(f"the test leaves behind {'; '.join(messages)}", pytrace=False)


def leaks_since(before: Snapshot, *, grace_s: float = GRACE_S) -> dict[Kind, list[str]]:
    """What is here that was not, once that which is ending had its time to end."""
    now = Snapshot.take()
    moved = [] if now.directory == before.directory else [f"the working directory {now.directory!r}"]
    os.chdir(before.directory)
    return {
        "processes": _lasting_processes(now.processes - before.processes, grace_s),
        "threads": _lasting_threads(now.threads - before.threads, grace_s),
        "files": moved or sorted(now.files - before.files),
    }


def _lasting_processes(processes: frozenset[psutil.Process], grace_s: float) -> list[str]:
    suspects = [process for process in processes if not _is_python_helper(process)]
    _, lasting = psutil.wait_procs(suspects, timeout=grace_s if suspects else 0)
    return [_describe(process) for process in lasting]


def _is_python_helper(process: psutil.Process) -> bool:
    """Whether it is multiprocessing's resource tracker, of which each Python process keeps one."""
    return "multiprocessing.resource_tracker" in " ".join(_command(process))


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _describe(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(_command(process))[:200]!r}"


def _lasting_threads(threads: frozenset[threading.Thread], grace_s: float) -> list[str]:
    suspects = [thread for thread in threads if not thread.daemon or thread.name.startswith("mosaic-")]
    deadline = time.monotonic() + grace_s
    for thread in suspects:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [repr(thread.name) for thread in suspects if thread.is_alive()]


def permanent_keys(client: Redis, namespace: str = "mosaic") -> list[str]:
    """The keys of a namespace that would stay for ever."""
    names = sorted(set(client.scan_iter(match=f"{namespace}:*", count=1_000)) - _REGISTRIES)
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.ttl(name)
        ttls = pipeline.execute()
    return [name.decode() for name, ttl in zip(names, ttls, strict=True) if ttl == -1]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Marks the environment that all processes of this session inherit, and notes the files.

    A process that shares the tests with others adds its name to the mark, so that it can tell what is its own. A
    SIGTERM from now on ends the session as Ctrl-C does, so that fixtures stop what they started.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell ignores it for what runs in its background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if _shares_tests(session.config):
        os.environ[SESSION_VARIABLE] += f".{os.environ['PYTEST_XDIST_WORKER']}"
        return
    os.environ[SESSION_VARIABLE] = uuid.uuid4().hex
    session.config.stash[_files_before] = _changed_files(session.config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Looks for what outlived the session, stops such processes, and fails the session."""
    end_templates()
    if _shares_tests(session.config):
        return
    strays = [f"process {text}" for text in _end_strays(session.config)]
    files_before = session.config.stash[_files_before]
    files = sorted(_changed_files(session.config.rootpath) - files_before)
    session.config.stash[_session_leaks] = strays + [f"file {line}" for line in files]
    is_ours = strays or (files and os.environ.get("CI") == "true")
    if is_ours and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Names what the session left behind."""
    for leak in config.stash.get(_session_leaks, []):
        terminalreporter.write_line(f"LEFT BEHIND by the session: {leak}", yellow=True)


def _shares_tests(config: pytest.Config) -> bool:
    """Whether this is one of the processes that `pytest -n` started."""
    return hasattr(config, "workerinput")


def _changed_files(root: Path) -> frozenset[str]:
    """What git would tell of the working tree; nothing where it is not one."""
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return frozenset(answer.stdout.splitlines())


def _end_strays(config: pytest.Config) -> list[str]:
    """Processes of this session that still run though all fixtures are gone; they are killed."""
    names = [session_name(), *_directories(config)]
    strays = [process for process in psutil.process_iter() if _is_stray(process, names)]
    _, lasting = psutil.wait_procs(strays, timeout=GRACE_S if strays else 0)
    described = [_describe(process) for process in lasting]
    for process in lasting:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(lasting, timeout=GRACE_S if lasting else 0)
    return described


def _directories(config: pytest.Config) -> list[str]:
    """Where the tests of this session had their temporary directories, if any had one."""
    factory = getattr(config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)
    return [] if base is None else [f"{base}{os.sep}"]


def _is_stray(process: psutil.Process, names: Sequence[str]) -> bool:
    """Whether it inherited our mark, or its command has one of the names (with an environment of its own)."""
    if process.pid == os.getpid() or _is_python_helper(process):
        return False
    with contextlib.suppress(psutil.Error, OSError):
        marked = process.environ().get(SESSION_VARIABLE, "").startswith(os.environ[SESSION_VARIABLE])
        command = "\0".join(process.cmdline())
        return marked or any(name in command for name in names)
    return False
