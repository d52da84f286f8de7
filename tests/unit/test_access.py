"""Who may do what: the decisions that need no server."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from mosaic_queues.errors import ConfigurationError, Forbidden, Unauthenticated
from mosaic_tasks.access.addresses import is_loopback
from mosaic_tasks.access.extra import needs_gateway
from mosaic_tasks.access.origins import check_origin
from mosaic_tasks.access.principal import Principal
from mosaic_tasks.access.provider import Provider, _usable
from mosaic_tasks.access.quotas import read_quotas
from mosaic_tasks.access.secrets import hashed, id_of, make_key, make_token
from mosaic_tasks.access.tokens import LEEWAY_S, TokenRules, Tokens

NOW_S = 1_000_000.0
RULES = TokenRules(issuer="https://id.example", audience="mosaic")
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": "mosaic",
    "sub": "ada",
    "exp": NOW_S + 600,
    "tenant": "acme",
    "scope": "openid submit read",
}


class TestAddresses:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "127.255.0.9",
            "::1",
            "[::1]",
            "localhost",
            "LOCALHOST",
            "unix:/run/mosaic.sock",
            "::ffff:127.0.0.1",
        ],
    )
    def test_of_this_machine_alone(self, host: str) -> None:
        assert is_loopback(host)

    @pytest.mark.parametrize(
        "host",
        [
            *[
                "0.0.0.0",
                "::",
                "10.0.0.1",
                "128.0.0.1",
                "example.com",
                "localhost.example.com",
                "127.0.0.1.example.com",
            ],
            *("::ffff:10.0.0.1", "127.1", "2130706433", "", " 127.0.0.1"),
        ],
    )
    def test_reached_by_others(self, host: str) -> None:
        assert not is_loopback(host)


class TestSecrets:
    def test_a_key_says_what_it_is_and_is_found_by_its_id(self) -> None:
        key = make_key()
        assert key.text.startswith(f"mosaic_{key.id}_")
        assert id_of(key.text) == key.id

    def test_a_key_holds_256_random_bits_beside_its_id(self) -> None:
        secrets = {make_key().text.split("_")[2] for _ in range(200)}
        assert len(secrets) == 200
        assert {len(secret) for secret in secrets} == {43}  # 62**43 > 2**256
        assert len(set("".join(secrets))) == 62
        assert 62**43 > 2**256

    @pytest.mark.parametrize(
        "text",
        ["", "mosaic_", "mosaic_short_x", f"mosaic_{'a' * 12}_{'b' * 42}", f"xmosaic_{'a' * 12}_{'b' * 43}"],
    )
    def test_what_is_no_key_has_no_id(self, text: str) -> None:
        assert id_of(text) is None
        assert id_of(make_key().text + "\n") is None

    def test_a_hash_is_of_the_whole(self) -> None:
        assert hashed("a") != hashed("b")
        assert hashed("\ud800")  # what no header can hold is compared all the same
        assert len({make_token() for _ in range(100)}) == 100


class TestPrincipals:
    def test_a_scope_is_needed(self) -> None:
        ada = Principal(subject="ada", scopes=frozenset({"read"}))
        ada.require("read")
        with pytest.raises(Forbidden, match="'ada' lacks the scope 'submit'"):
            ada.require("submit")

    def test_only_operate_sees_other_tenants(self) -> None:
        assert not Principal(subject="ada", tenant="acme", scopes=frozenset({"read"})).sees("other")
        assert not Principal(subject="ada", tenant="acme", scopes=frozenset({"read"})).sees("")
        assert Principal(subject="ada", tenant="acme").sees("acme")
        assert Principal(subject="ops", tenant="acme", scopes=frozenset({"operate"})).sees("other")


HOST = {"host": "mosaic.example:8000"}


class TestOrigins:
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "same-origin"},
            {"origin": "https://mosaic.example:8000"},
            {"origin": "http://mosaic.example:8000", "sec-fetch-site": "same-origin"},
        ],
    )
    def test_its_own_pages_may(self, headers: dict[str, str]) -> None:
        check_origin("POST", {**HOST, **headers}, is_told=True)

    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "none"},
            {"origin": "https://evil.example"},
            {"origin": "https://mosaic.example:8001"},
            {"origin": "null"},
            {"origin": "http://["},
            {"origin": ""},
            {"origin": "https://mosaic.example:8000", "sec-fetch-site": "cross-site"},
        ],
    )
    def test_pages_of_others_may_not(self, headers: dict[str, str]) -> None:
        with pytest.raises(Forbidden, match="a page of another site"):
            check_origin("POST", {**HOST, **headers})

    def test_a_cookie_needs_to_say_where_it_comes_from(self) -> None:
        check_origin("POST", HOST)
        with pytest.raises(Forbidden):
            check_origin("POST", HOST, is_told=True)

    def test_reading_is_nobodys_attack(self) -> None:
        check_origin("GET", {**HOST, "sec-fetch-site": "cross-site"}, is_told=True)

    def test_origins_that_are_allowed_may(self) -> None:
        app = {**HOST, "origin": "http://localhost:5173", "sec-fetch-site": "cross-site"}
        check_origin("POST", app, allowed=["http://localhost:5173"])
        with pytest.raises(Forbidden):
            check_origin("POST", app, allowed=["http://localhost:5174"])


class TestClaims:
    def test_they_tell_who_and_for_whom(self) -> None:
        ada = RULES.principal(CLAIMS, now_s=NOW_S)
        assert ada == Principal(
            subject="ada",
            tenant="acme",
            scopes=frozenset({"submit", "read"}),
            until_ms=int(NOW_S + 600) * 1000,
        )

    def test_a_list_of_audiences_and_of_scopes(self) -> None:
        claims = {**CLAIMS, "aud": ["other", "mosaic"], "scope": ["cancel", "admin", 7]}
        assert RULES.principal(claims, now_s=NOW_S).scopes == {"cancel"}

    def test_other_names_of_claims(self) -> None:
        rules = TokenRules(issuer=RULES.issuer, audience="mosaic", tenant_claim="org", scope_claim="roles")
        ada = rules.principal({**CLAIMS, "org": "beta", "roles": ["operate"]}, now_s=NOW_S)
        assert (ada.tenant, ada.scopes) == ("beta", {"operate"})

    def test_without_a_claim_for_tenants_all_have_the_one_without_a_name(self) -> None:
        rules = TokenRules(issuer=RULES.issuer, audience="mosaic", tenant_claim="")
        assert rules.principal(CLAIMS, now_s=NOW_S).tenant == ""

    @pytest.mark.parametrize(
        "wrong",
        [
            {"iss": "https://id.example/"},
            {"iss": None},
            {"aud": "other"},
            {"aud": ["other"]},
            {"aud": {"mosaic": 1}},
            {"aud": None},
            {"exp": NOW_S - LEEWAY_S},
            {"exp": None},
            {"exp": "never"},
            {"exp": float("nan")},
            {"exp": True},
            {"nbf": NOW_S + LEEWAY_S + 1},
            {"iat": NOW_S + LEEWAY_S + 1},
            {"sub": None},
            {"sub": ""},
            {"sub": "ada\nroot"},
            {"sub": "a" * 201},
            {"tenant": None},
            {"tenant": ""},
            {"tenant": "a b"},
            {"tenant": ["acme"]},
            {"tenant": "acme}"},
        ],
        ids=repr,
    )
    def test_wrong_ones_are_nobodys(self, wrong: dict[str, Any]) -> None:
        claims = {name: value for name, value in {**CLAIMS, **wrong}.items() if value is not None}
        with pytest.raises(Unauthenticated, match="the token"):
            RULES.principal(claims, now_s=NOW_S)

    @pytest.mark.parametrize(
        "fine", [{"exp": NOW_S - LEEWAY_S + 2}, {"nbf": NOW_S + LEEWAY_S}, {"exp": 1e300}]
    )
    def test_clocks_may_differ_a_little(self, fine: dict[str, Any]) -> None:
        assert RULES.principal({**CLAIMS, **fine}, now_s=NOW_S).subject == "ada"


class TestTokens:
    @pytest.mark.parametrize(
        "text", ["", "x", "a.b", "a.b.c", "....", "e30.e30.", "é.é.é", "a" * 20_000, ".." * 9]
    )
    def test_what_is_no_token_asks_no_provider(self, text: str) -> None:
        tokens = Tokens(RULES, Provider(RULES.issuer))
        with pytest.raises(Unauthenticated):
            tokens.admit(text)

    @pytest.mark.parametrize(
        "issuer", ["", "id.example", "http://id.example", "ftp://127.0.0.1", "https://", "http://["]
    )
    def test_a_provider_is_reached_safely_or_not_at_all(self, issuer: str) -> None:
        with pytest.raises(ConfigurationError, match="https://"):
            Provider(issuer)

    @pytest.mark.parametrize(
        "listed",
        [
            {"kty": "oct", "k": "c2VjcmV0"},
            {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
            {"kty": "EC", "use": "enc"},
            {"kty": "EC", "crv": "P-256"},
            {},
            "key",
            {"kty": "RSA", "n": 7},
        ],
        ids=repr,
    )
    def test_keys_that_prove_nothing_are_left_out(self, listed: Any) -> None:
        assert _usable(listed) is None


def test_what_is_not_installed_is_told_with_what_helps() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"'none_such'.*pip install 'mosaic-tasks\[gateway\]'"),
        needs_gateway(),
    ):
        importlib.import_module("none_such")


class TestQuotaFiles:
    def test_each_tenant_has_its_own(self, tmp_path: Path) -> None:
        file = tmp_path / "quotas.yaml"
        file.write_text("tenants:\n  '*': {open_runs: 5}\n  acme: {readers: 2, starts_per_minute: 60}\n")
        quotas = read_quotas(file)
        assert (quotas["*"].open_runs, quotas["acme"].readers, quotas["acme"].open_runs) == (5, 2, None)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("tenants: {acme: {open_runs: 0}}", "tenants.acme.open_runs"),
            ("tenants: {acme: {opens: 1}}", "tenants.acme.opens"),
            ("[1]", "cannot be used"),
            ("{", "cannot be read"),
        ],
    )
    def test_what_makes_no_sense_is_told(self, text: str, told: str, tmp_path: Path) -> None:
        file = tmp_path / "quotas.yaml"
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=told):
            read_quotas(file)

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_quotas(tmp_path / "none.yaml")
