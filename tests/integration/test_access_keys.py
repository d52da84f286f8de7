"""API keys and the audit log on a real server, by the library and by the command line; kills among them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from typer.testing import CliRunner, Result

from mosaic_queues.errors import InputError, Unauthenticated
from mosaic_queues.settings import Settings
from mosaic_tasks.access.audit import Audit, Deed, audit_of
from mosaic_tasks.access.gates import keys_of
from mosaic_tasks.access.keyring import KeyRing
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.secrets import id_of, make_key
from mosaic_tasks.app import app
from mosaic_tasks.cli import application
from mosaic_tasks.cli.exits import ExitCode
from tests.services import READY_S, missing

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("mosaic_process"),
    pytest.mark.leaves("keys", reason="an API key without an expiry stays until it is revoked"),
]
DEED = Deed("POST /v1/runs", "127.0.0.1", "run-1")


@pytest.fixture
def ring() -> KeyRing:
    return keys_of(app)


@pytest.fixture
def audit() -> Audit:
    return audit_of(app)


def cli(*words: str) -> Result:
    return CliRunner().invoke(application, ["keys", *words])


def test_a_key_says_whose_it_is(ring: KeyRing) -> None:
    key = ring.add("ci", tenant="acme", scopes=["read", "submit"])
    assert ring.admit(key) == Principal(
        subject="ci", tenant="acme", scopes=frozenset({"submit", "read"}), key=id_of(key) or ""
    )


def test_a_key_that_is_not_known_is_nobodys(ring: KeyRing) -> None:
    key = ring.add("ci", scopes=["read"])
    for wrong in (make_key().text, f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}", "mosaic_", "", key.lower()):
        with pytest.raises(Unauthenticated, match="not known here") as caught:
            ring.admit(wrong)
        assert wrong == "" or wrong not in str(caught.value)


def test_a_key_expires_and_is_told_so_to_who_has_it_alone(ring: KeyRing, redis_client: Redis) -> None:
    key = ring.add("ci", scopes=["read"], lifetime_s=0.001)
    end_of(ring, key, redis_client)
    with pytest.raises(Unauthenticated, match="'ci' has expired"):
        ring.admit(key)
    with pytest.raises(Unauthenticated, match="not known here"):
        ring.admit(f"{key[:-1]}{'a' if key[-1] != 'a' else 'b'}")
    [listed] = ring.all()
    assert listed.expires_ms > 0
    assert ring.holder(listed.id) is None


def end_of(ring: KeyRing, key: str, client: Redis) -> None:
    """Waits until the server's clock has passed the key's end."""
    [expires] = [each.expires_ms for each in ring.all() if each.id == id_of(key)]
    while (now := client.time())[0] * 1000 + now[1] // 1000 < expires:
        client.blpop(["nothing"], timeout=0.001)  # type: ignore[arg-type]


def test_a_name_is_taken_once(ring: KeyRing) -> None:
    key = ring.add("ci", scopes=["read"])
    with pytest.raises(InputError, match="there is a key 'ci' already"):
        ring.add("ci", scopes=["operate"])
    assert ring.admit(key).scopes == {"read"}


@pytest.mark.parametrize(
    ("name", "tenant", "scopes", "told"),
    [
        ("a b", "", ["read"], "no name of a key"),
        ("", "", ["read"], "no name of a key"),
        ("ci", "a b", ["read"], "no name of a tenant"),
        ("ci", "", ["admin"], "'admin' is no scope"),
        ("ci", "", [], "may do nothing"),
    ],
)
def test_what_makes_no_sense_makes_no_key(
    name: str, tenant: str, scopes: list[str], told: str, ring: KeyRing
) -> None:
    with pytest.raises(InputError, match=told):
        ring.add(name, tenant=tenant, scopes=scopes)
    assert ring.all() == []
    assert not ring.is_closed()


class TestRotation:
    def test_the_old_key_stays_valid_for_the_grace(self, ring: KeyRing) -> None:
        old = ring.add("ci", tenant="acme", scopes=["read", "cancel"], lifetime_s=3600)
        new = ring.rotate("ci", grace_s=60)
        first, second = ring.all()
        assert (first.id, first.is_current, second.id, second.is_current) == (
            id_of(new),
            True,
            id_of(old),
            False,
        )
        assert first.expires_ms - first.made_ms == 3_600_000
        assert second.expires_ms == first.made_ms + 60_000
        assert ring.admit(old).scopes == ring.admit(new).scopes == {"read", "cancel"}
        assert ring.admit(new).tenant == "acme"

    def test_a_grace_prolongs_nothing(self, ring: KeyRing) -> None:
        ring.add("ci", scopes=["read"], lifetime_s=30)
        [before] = ring.all()
        ring.rotate("ci", grace_s=3600)
        assert [each.expires_ms for each in ring.all() if not each.is_current] == [before.expires_ms]

    def test_without_a_grace_the_old_key_ends_at_once(self, ring: KeyRing) -> None:
        old = ring.add("ci", scopes=["read"])
        new = ring.rotate("ci", grace_s=0, lifetime_s=60)
        with pytest.raises(Unauthenticated):
            ring.admit(old)
        assert ring.admit(new).until_ms > 0

    def test_what_is_not_there_is_not_rotated(self, ring: KeyRing) -> None:
        with pytest.raises(InputError, match="there is no key 'ci'"):
            ring.rotate("ci")
        with pytest.raises(InputError, match="grace"):
            ring.rotate("ci", grace_s=-1)

    def test_one_that_is_killed_before_it_was_done_changed_nothing(
        self, ring: KeyRing, redis_client: Redis, mosaic_process: Settings
    ) -> None:
        key = ring.add("ci", scopes=["read"])
        try:
            redis_client.client_pause(60_000, all=False)
        except ResponseError as error:
            missing(f"a server that may be paused ({error})")
        try:
            rotating = subprocess.Popen(
                [sys.executable, "-m", "mosaic_tasks.cli", "keys", "rotate", "ci"], stdout=subprocess.PIPE
            )
            assert rotating.stdout is not None
            with rotating.stdout:
                await_blocked(redis_client)
                rotating.kill()
                assert rotating.stdout.read() == b""
            rotating.wait(READY_S)
        finally:
            redis_client.client_unpause()
        assert [each.id for each in ring.all()] == [id_of(key)]
        assert ring.admit(key).until_ms == 0

    def test_one_that_is_killed_before_anybody_read_the_key_is_done_again(
        self, ring: KeyRing, mosaic_process: Settings
    ) -> None:
        old = ring.add("ci", scopes=["read"])
        code = (
            "import os, signal; from mosaic_tasks.app import app; from mosaic_tasks.access.gates import keys_of;"
            "keys_of(app).rotate('ci', grace_s=600); os.kill(os.getpid(), signal.SIGKILL)"
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        assert ring.admit(old).subject == "ci"  # whoever has it goes on meanwhile
        new = ring.rotate("ci", grace_s=60)
        assert ring.admit(new).until_ms == 0
        assert [each.expires_ms > 0 for each in ring.all()] == [False, True, True]


def await_blocked(client: Redis) -> None:
    """Waits until the server keeps a client waiting."""
    while not int(client.info("clients")["blocked_clients"]):
        client.ping()


class TestRevocation:
    def test_all_keys_of_the_name_end(self, ring: KeyRing, redis_client: Redis) -> None:
        old = ring.add("ci", scopes=["read"])
        new = ring.rotate("ci")
        assert ring.revoke("ci") == 2
        for key in (old, new):
            with pytest.raises(Unauthenticated, match="not known here"):
                ring.admit(key)
        assert ring.all() == []
        with pytest.raises(InputError, match="there is no key 'ci'"):
            ring.revoke("ci")
        assert redis_client.keys("mosaic:{access}:key:*") == []

    def test_use_that_is_noted_late_brings_nothing_back(
        self, ring: KeyRing, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mosaic_tasks.access.keyring._noted_s", {})
        key = ring.add("ci", scopes=["read"])
        ring.revoke("ci")
        ring._note_use(id_of(key) or "")
        assert redis_client.keys("mosaic:{access}:key:*") == []

    def test_the_door_stays_closed(self, ring: KeyRing) -> None:
        assert not ring.is_closed()
        ring.add("ci", scopes=["read"])
        ring.revoke("ci")
        assert ring.is_closed()


def test_use_is_noted_once_a_minute(
    ring: KeyRing, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr("mosaic_tasks.access.keyring._noted_s", {})
    monkeypatch.setattr("mosaic_tasks.access.keyring.time.monotonic", lambda: now_s[0])
    key = ring.add("ci", scopes=["read"])
    assert ring.all()[0].used_ms == 0
    ring.admit(key)
    noted = ring.all()[0].used_ms
    assert noted > 0
    name = f"mosaic:{{access}}:key:{id_of(key)}"
    redis_client.hset(name, "used", 1)
    ring.admit(key)
    assert ring.all()[0].used_ms == 1
    now_s[0] += 61
    ring.admit(key)
    assert ring.all()[0].used_ms >= noted


def test_a_key_is_told_once_and_nowhere_else(
    ring: KeyRing, redis_client: Redis, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with redis_client.monitor() as monitor:
        key = json.loads(cli("add", "ci", "--scope", "read", "--json").stdout)["key"]
        rotated = cli("rotate", "ci").stdout.strip()
        ring.admit(key)
        with pytest.raises(Unauthenticated) as caught:
            ring.admit(f"{key}x")
        shown = cli("list").output + cli("list", "--json").output + cli("audit", "--json").output
        redis_client.echo("seen all")
        commands: list[str] = []
        while not commands or "seen all" not in commands[-1]:
            commands.append(str(monitor.next_command()))
    everything = "\n".join([*commands, shown, str(caught.value), *capsys.readouterr(), caplog.text])
    assert id_of(key) in everything
    for secret in (key, rotated):
        assert secret.rpartition("_")[2] not in everything
    stored = b"".join(redis_client.dump(name) or b"" for name in redis_client.scan_iter())
    assert key.rpartition("_")[2].encode() not in stored


class TestCommands:
    def test_from_making_to_revoking(self, ring: KeyRing) -> None:
        made = cli(
            "add", "ci", "--tenant", "acme", "--scope", "submit", "--scope", "read", "--expires", "90d"
        )
        key = made.stdout.strip()
        assert "nobody can show it again" in made.stderr
        principal = ring.admit(key)
        assert (principal.tenant, principal.scopes) == ("acme", {"submit", "read"})
        [listed] = json.loads(cli("list", "--json").stdout)
        assert listed["expires_ms"] - listed["made_ms"] == 90 * 86_400_000
        assert listed["used_ms"] > 0
        assert "acme" in cli("list").stdout
        new = json.loads(cli("rotate", "ci", "--grace", "0", "--json").stdout)["key"]
        assert ring.admit(new).subject == "ci"
        with pytest.raises(Unauthenticated):
            ring.admit(key)
        assert "ci (replaced)" in cli("list").stdout
        assert cli("revoke", "ci").stdout == "revoked: ci\n"
        assert "there are no keys" in cli("list").stdout

    @pytest.mark.parametrize(
        "words",
        [
            ["add", "ci"],
            ["add", "ci", "--scope", "all"],
            ["add", "ci", "--scope", "read", "--expires", "soon"],
            ["add", "ci", "--scope", "read", "--expires", "90"],
            ["rotate", "ci", "--grace", "1.5"],
            ["rotate", "ci"],
            ["revoke", "ci"],
            ["add", "a b", "--scope", "read"],
        ],
    )
    def test_what_makes_no_sense_is_told(self, words: list[str]) -> None:
        assert cli(*words).exit_code == ExitCode.USAGE

    def test_a_time_without_a_unit_is_told_with_units(self) -> None:
        told = cli("add", "ci", "--scope", "read", "--expires", "90").stderr
        assert "'90' has no unit; write 90d for days, 90h for hours" in told

    def test_who_changes_keys_is_in_the_log(self) -> None:
        cli("add", "ci", "--scope", "read")
        cli("revoke", "ci")
        told = [json.loads(line) for line in cli("audit", "--json").stdout.splitlines()]
        assert [(each["outcome"], each["action"]) for each in told] == [
            ("allowed", "key.add ci"),
            ("allowed", "key.revoke ci"),
        ]
        assert all(each["subject"].endswith("(command line)") for each in told)
        assert cli("audit", "--last", "1").stdout.endswith("(command line) allowed key.revoke ci\n")

    def test_the_log_is_followed(self, audit: Audit, tmp_path: Path, mosaic_process: Settings) -> None:
        audit.allowed(Principal(subject="ada"), DEED)
        command = [sys.executable, "-m", "mosaic_tasks.cli", "keys", "audit", "--follow", "--json"]
        following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert following.stdout is not None
        with following.stdout as lines:
            assert json.loads(lines.readline())["subject"] == "ada"
            audit.refused(None, DEED, Unauthenticated("no"))
            assert json.loads(lines.readline())["reason"] == "Unauthenticated: no"
            following.send_signal(signal.SIGINT)
            assert following.wait(READY_S) == ExitCode.INTERRUPTED


class TestAudit:
    def test_it_tells_who_did_what_to_which_run_when_and_from_where(
        self, audit: Audit, redis_client: Redis
    ) -> None:
        ada = Principal(subject="ada", tenant="acme", key="k1")
        audit.allowed(ada, DEED)
        audit.refused(None, Deed("GET /x", "10.0.0.9"), Unauthenticated("nobody"))
        first, second = audit.last(10)
        assert (
            first.outcome,
            first.action,
            first.subject,
            first.tenant,
            first.key,
            first.address,
            first.run,
        ) == (
            "allowed",
            *("POST /v1/runs", "ada", "acme", "k1", "127.0.0.1", "run-1"),
        )
        assert (second.outcome, second.subject, second.reason) == ("refused", "", "Unauthenticated: nobody")
        assert 0 < first.at_ms <= second.at_ms
        assert audit.last(1) == [second]

    def test_who_is_refused_pushes_nothing_out(self, mosaic_process: Settings, redis_client: Redis) -> None:
        keys = keys_of(app)._names
        audit = Audit(redis_client, keys, entries=1)
        audit.allowed(Principal(subject="ada"), DEED)
        for _ in range(1_000):
            audit.refused(None, DEED, Unauthenticated("no"))
        assert [each.subject for each in audit.last(10_000) if each.outcome == "allowed"] == ["ada"]
        assert int(redis_client.xlen("mosaic:{access}:audit:refused")) < 500

    def test_what_comes_from_outside_writes_no_line_of_its_own(self, audit: Audit) -> None:
        audit.allowed(Principal(subject="ada\nroot\x1b[2J"), Deed("POST /v1/runs", "a", "r\n" * 1_000))
        [entry] = audit.last(1)
        assert entry.subject == "ada?root?[2J"
        assert "\n" not in entry.run
        assert len(entry.run) == 200

    def test_what_cannot_be_entered_is_not_done(self, full: Redis, audit: Audit) -> None:
        with pytest.raises(ResponseError, match="maxmemory"):
            audit.allowed(Principal(subject="ada"), DEED)
        audit.refused(None, DEED, Unauthenticated("no"))  # is refused all the same
        audit.came_of(Principal(subject="ada"), DEED)


@pytest.fixture
def full(redis_client: Redis) -> Iterator[Redis]:
    """A server without room."""
    try:
        redis_client.config_set("maxmemory", 1)
    except ResponseError as error:
        missing(f"a server that lets us set its memory limit ({error})")
    yield redis_client
    redis_client.config_set("maxmemory", 0)


def test_who_only_reads_enters_a_full_server(
    ring: KeyRing, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("mosaic_tasks.access.keyring._noted_s", {})
    key = ring.add("ci", scopes=["read"])
    request.getfixturevalue("full")
    assert ring.admit(key).subject == "ci"
