"""Tokens of an identity provider, against a real one over HTTP."""

from __future__ import annotations

import base64
import hmac
import json
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme
from joserfc import jwk, jws, jwt

from mosaic_queues.errors import ProviderUnavailable, Unauthenticated
from mosaic_tasks.access.provider import FRESH_S, PAUSE_S, Provider
from mosaic_tasks.access.tokens import TokenRules, Tokens
from tests.integration.issuers import AUDIENCE, Issuer, issuer

pytestmark = pytest.mark.integration
DISCOVERY = "/.well-known/openid-configuration"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def provider() -> Iterator[Issuer]:
    with issuer() as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(provider: Issuer, clock: Clock) -> Tokens:
    rules = TokenRules(issuer=provider.url, audience=AUDIENCE)
    return Tokens(rules, Provider(provider.url, clock=clock))


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class TestGoodTokens:
    @pytest.mark.parametrize(
        ("kind", "alg"),
        [("EC", "ES256"), ("RSA", "RS256"), ("RSA", "PS512"), ("OKP", "EdDSA"), ("OKP", "Ed25519")],
    )
    @pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # and providers still say so
    def test_they_say_who_it_is(self, kind: str, alg: str, tokens: Tokens, provider: Issuer) -> None:
        provider.add("second", kind)
        ada = tokens.admit(provider.token("second", alg=alg))
        assert (ada.subject, ada.tenant, ada.scopes) == ("ada", "acme", {"submit", "read"})
        assert ada.until_ms > time.time() * 1000

    def test_the_keys_are_read_once(self, tokens: Tokens, provider: Issuer) -> None:
        for _ in range(3):
            tokens.admit(provider.token())
        assert provider.asked == [DISCOVERY, "/keys"]

    def test_who_comes_while_they_are_read_waits_for_that(self, tokens: Tokens, provider: Issuer) -> None:
        token = provider.token()
        with ThreadPoolExecutor(8) as pool:
            assert {each.subject for each in pool.map(tokens.admit, [token] * 8)} == {"ada"}
        assert provider.asked == [DISCOVERY, "/keys"]

    def test_a_provider_with_one_key_need_not_name_it(self, tokens: Tokens, provider: Issuer) -> None:
        token = jwt.encode({"alg": "ES256"}, provider.claims(), provider.keys["first"])
        assert tokens.admit(token).subject == "ada"

    def test_access_tokens_by_their_own_type(self, tokens: Tokens, provider: Issuer) -> None:
        assert tokens.admit(provider.token(header={"typ": "at+jwt", "x5t": "abc"})).subject == "ada"


class TestBadTokens:
    def refuse(self, tokens: Tokens, token: str, told: str = "token") -> None:
        with pytest.raises(Unauthenticated, match=told) as caught:
            tokens.admit(token)
        assert token == "" or token not in str(caught.value)

    def test_alg_none(self, tokens: Tokens, provider: Issuer) -> None:
        for alg in ("none", "None", "NONE", "", None, ["ES256"]):
            self.refuse(
                tokens, f"{part({'alg': alg, 'kid': 'first'})}.{part(provider.claims())}.", "not signed"
            )

    def test_the_public_key_as_a_secret(self, tokens: Tokens, provider: Issuer) -> None:
        provider.add("rsa", "RSA")
        public = provider.keys["rsa"].as_pem(private=False)
        signed = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(provider.claims())}"
        mac = hmac.digest(public, signed.encode(), "sha256")
        signature = base64.urlsafe_b64encode(mac).decode().rstrip("=")
        self.refuse(tokens, f"{signed}.{signature}", "not signed as is allowed")

    def test_a_secret_that_the_provider_lists_by_mistake(self, tokens: Tokens, provider: Issuer) -> None:
        provider.answers["/keys"] = json.dumps(
            {"keys": [{"kty": "oct", "kid": "first", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}]}
        ).encode()
        self.refuse(tokens, provider.token(), "does not list")

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            ({"aud": "other"}, "aud"),
            ({"aud": None}, "aud"),
            ({"iss": "https://id.example"}, "iss"),
            ({"exp": 1_000_000_000}, "expired"),
            ({"exp": None}, "exp"),
            ({"nbf": 4_000_000_000}, "not yet valid"),
            ({"iat": 4_000_000_000}, "future"),
            ({"tenant": None}, "'tenant'"),
            ({"sub": None}, "sub"),
        ],
        ids=str,
    )
    def test_wrong_claims(self, wrong: dict[str, Any], told: str, tokens: Tokens, provider: Issuer) -> None:
        self.refuse(tokens, provider.token(**wrong), told)

    def test_a_signature_by_somebody_else(self, tokens: Tokens, provider: Issuer) -> None:
        other = jwk.generate_key("EC", "P-256", {"kid": "first"})
        self.refuse(tokens, provider.token(key=other), "signature")

    def test_claims_that_were_changed(self, tokens: Tokens, provider: Issuer) -> None:
        head, _, signature = provider.token().split(".")
        self.refuse(tokens, f"{head}.{part(provider.claims(tenant='other'))}.{signature}", "signature")

    def test_a_signature_of_another_kind_of_key(self, tokens: Tokens, provider: Issuer) -> None:
        _, claims, signature = provider.token().split(".")
        self.refuse(tokens, f"{part({'alg': 'RS256', 'kid': 'first'})}.{claims}.{signature}", "signature")

    def test_its_own_key_in_the_header(self, tokens: Tokens, provider: Issuer) -> None:
        other = jwk.generate_key("EC", "P-256")
        head = {"alg": "ES256", "jwk": other.as_dict(private=False)}
        self.refuse(tokens, jwt.encode(head, provider.claims(), other), "header")

    @pytest.mark.parametrize(
        "head", [{"crit": ["exp"]}, {"kid": 7}, {"typ": "secevent+jwt"}, {"b64": False}], ids=str
    )
    def test_headers_that_ask_for_more(self, head: dict[str, Any], tokens: Tokens, provider: Issuer) -> None:
        _, claims, signature = provider.token().split(".")
        forged = part({"alg": "ES256", "kid": "first", **head})
        self.refuse(tokens, f"{forged}.{claims}.{signature}", "header")

    def test_what_is_too_large_is_not_even_read(self, tokens: Tokens, provider: Issuer) -> None:
        self.refuse(tokens, provider.token(more="x" * 20_000))
        assert provider.asked == []

    def test_claims_that_are_no_object(self, tokens: Tokens, provider: Issuer) -> None:
        for body in (b"[]", b"7", b"\xff", b"[" * 5_000):
            token = jws.serialize_compact({"alg": "ES256", "kid": "first"}, body, provider.keys["first"])
            self.refuse(tokens, token)


class TestKeysOfTheProvider:
    def test_over_tls_from_whom_an_authority_vouches_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with issuer(context) as provider:
            rules = TokenRules(issuer=provider.url, audience=AUDIENCE)
            with pytest.raises(ProviderUnavailable, match="does not answer"):
                Tokens(rules, Provider(provider.url)).admit(provider.token())
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            assert Tokens(rules, Provider(provider.url)).admit(provider.token()).subject == "ada"

    def test_new_ones_are_found_when_a_token_names_them(
        self, tokens: Tokens, provider: Issuer, clock: Clock
    ) -> None:
        tokens.admit(provider.token())
        provider.add("second")
        clock.now_s += PAUSE_S
        assert tokens.admit(provider.token("second")).subject == "ada"

    def test_a_flood_of_unknown_ones_is_none_to_the_provider(
        self, tokens: Tokens, provider: Issuer, clock: Clock
    ) -> None:
        for number in range(50):
            with pytest.raises(Unauthenticated, match="does not list"):
                tokens.admit(provider.token(header={"kid": f"made-up-{number}"}))
        assert provider.asked == [DISCOVERY, "/keys"]
        clock.now_s += PAUSE_S
        with pytest.raises(Unauthenticated):
            tokens.admit(provider.token(header={"kid": "made-up"}))
        assert len(provider.asked) == 4
        assert tokens.admit(provider.token()).subject == "ada"

    def test_old_ones_serve_on_while_it_is_away(self, tokens: Tokens, provider: Issuer, clock: Clock) -> None:
        tokens.admit(provider.token())
        provider.answers[DISCOVERY] = None
        clock.now_s += FRESH_S
        assert tokens.admit(provider.token()).subject == "ada"
        assert provider.asked == [DISCOVERY, "/keys", DISCOVERY]

    def test_one_that_it_withdrew_is_not_believed_for_ever(
        self, tokens: Tokens, provider: Issuer, clock: Clock
    ) -> None:
        withdrawn = provider.token()
        tokens.admit(withdrawn)
        provider.add("second")
        del provider.keys["first"]
        clock.now_s += FRESH_S
        with pytest.raises(Unauthenticated, match="does not list"):
            tokens.admit(withdrawn)

    def test_one_that_was_away_is_asked_again_later(
        self, tokens: Tokens, provider: Issuer, clock: Clock
    ) -> None:
        provider.answers[DISCOVERY] = None
        for _ in range(3):
            with pytest.raises(ProviderUnavailable, match="does not answer") as caught:
                tokens.admit(provider.token())
            assert caught.value.retry_after_s == PAUSE_S
        assert provider.asked == [DISCOVERY]
        del provider.answers[DISCOVERY]
        clock.now_s += PAUSE_S
        assert tokens.admit(provider.token()).subject == "ada"

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            (DISCOVERY, b"<html>"),
            (DISCOVERY, b"[]"),
            ("/keys", b'{"keys": 7}'),
            ("/keys", b"{}"),
            ("/keys", b"[" * 100_000),
            ("/keys", b'{"keys": ' * 50_000),
        ],
    )
    def test_nonsense_from_it_lets_nobody_in(
        self, path: str, body: bytes, tokens: Tokens, provider: Issuer
    ) -> None:
        provider.answers[path] = body
        with pytest.raises(ProviderUnavailable):
            tokens.admit(provider.token())

    @pytest.mark.parametrize(
        "more", [{"issuer": "https://other.example"}, {"more": "x" * 2_000_000}], ids=list
    )
    def test_one_that_is_another_or_says_too_much_lets_nobody_in(
        self, more: dict[str, str], tokens: Tokens, provider: Issuer
    ) -> None:
        document = {"issuer": provider.url, "jwks_uri": f"{provider.url}/keys", **more}
        provider.answers[DISCOVERY] = json.dumps(document).encode()
        with pytest.raises(ProviderUnavailable):
            tokens.admit(provider.token())

    def test_keys_that_anybody_on_the_way_can_exchange_are_not_read(
        self, tokens: Tokens, provider: Issuer
    ) -> None:
        place = f"{provider.url.replace('127.0.0.1', '0.0.0.0')}/keys"  # leads here all the same
        provider.answers[DISCOVERY] = json.dumps({"issuer": provider.url, "jwks_uri": place}).encode()
        with pytest.raises(ProviderUnavailable):
            tokens.admit(provider.token())
        assert provider.asked == [DISCOVERY]

    @pytest.mark.parametrize(
        "place", ["http://id.example/keys", "file:///etc/passwd", "", "ftp://127.0.0.1/keys"]
    )
    def test_keys_are_read_from_safe_places_alone(self, place: str, tokens: Tokens, provider: Issuer) -> None:
        provider.answers[DISCOVERY] = json.dumps({"issuer": provider.url, "jwks_uri": place}).encode()
        with pytest.raises(ProviderUnavailable):
            tokens.admit(provider.token())
        assert provider.asked == [DISCOVERY]
