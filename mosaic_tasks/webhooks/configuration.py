"""The secret and the allowed addresses of webhooks, from `MOSAIC_WEBHOOK_*` environment variables."""

from __future__ import annotations

import base64
import binascii
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from mosaic_queues.errors import ConfigurationError

_PREFIX = "whsec_"
_SECRET_BYTES = (24, 64)
_ADVICE = (
    "make one with: python -c 'import base64, secrets; "
    'print("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())\''
)


class WebhookSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="MOSAIC_WEBHOOK_", frozen=True)

    secret: SecretStr = Field(default=SecretStr(""), description="whsec_..., several while one is replaced")
    allow: str = Field(
        default="", description="hosts and networks that are not public, and may be told all the same"
    )


class Allowed(NamedTuple):
    """Whom webhooks may be sent to besides public addresses, and without TLS."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()


def signing_secrets() -> tuple[bytes, ...]:
    """The secrets of MOSAIC_WEBHOOK_SECRET; the first is the newest.

    Raises:
        ConfigurationError: there is none, or one is malformed. The message does not show it.
    """
    words = WebhookSettings().secret.get_secret_value().split()
    if not words:
        raise ConfigurationError(f"webhooks are signed, and MOSAIC_WEBHOOK_SECRET is not set; {_ADVICE}")
    return tuple(_secret(word) for word in words)


def _secret(word: str) -> bytes:
    try:
        secret = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    least, most = _SECRET_BYTES
    if not word.startswith(_PREFIX) or not least <= len(secret) <= most:
        raise ConfigurationError(
            f"MOSAIC_WEBHOOK_SECRET is no secret of a webhook ({_PREFIX} and {least} to {most} bytes as base64); "
            f"{_ADVICE}"
        )
    return secret


def allowed() -> Allowed:
    """What MOSAIC_WEBHOOK_ALLOW names: hosts and networks, with commas or blanks between them.

    Raises:
        ConfigurationError: a network is malformed.
    """
    hosts, networks = set[str](), list[IPv4Network | IPv6Network]()
    for word in WebhookSettings().allow.replace(",", " ").split():
        if network := _network(word):
            networks.append(network)
        else:
            hosts.add(word.lower().rstrip("."))
    return Allowed(frozenset(hosts), tuple(networks))


def _network(word: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(word.strip("[]"))
    except ValueError as error:
        if "/" not in word:
            return None
        raise ConfigurationError(
            f"MOSAIC_WEBHOOK_ALLOW holds {word!r}, which is no network ({error}); write 10.1.0.0/16, or a host's name"
        ) from None
