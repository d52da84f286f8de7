"""Secrets that are shown to people: made at random, kept as hashes."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import NamedTuple

PREFIX = "mosaic_"
"""By this people, and scanners of repositories, know an API key."""
_DIGITS = string.digits + string.ascii_letters
_ID_DIGITS, _SECRET_DIGITS = 12, 43  # 43 digits of base 62 are 256 bits
_KEY = re.compile(rf"{PREFIX}([0-9A-Za-z]{{{_ID_DIGITS}}})_[0-9A-Za-z]{{{_SECRET_DIGITS}}}")


class MadeKey(NamedTuple):
    """A new API key.

    Attributes:
        id: by which it is found; no secret.
        text: all of it, `mosaic_ID_SECRET`.
    """

    id: str
    text: str


def make_key() -> MadeKey:
    """A new API key; a double click selects all of it."""
    key_id = _random(_ID_DIGITS)
    return MadeKey(key_id, f"{PREFIX}{key_id}_{_random(_SECRET_DIGITS)}")


def make_token() -> str:
    """A random text of 256 bits."""
    return _random(_SECRET_DIGITS)


def id_of(key: str) -> str | None:
    """The id in an API key; None: it is none."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def hashed(secret: str) -> str:
    """What is kept of a secret.

    A plain SHA-256 is right here, and a slow hash would be wrong: the secrets are 256 random bits, which nobody can go
    through however fast the hash is, and each request has to be checked.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _random(digits: int) -> str:
    return "".join(secrets.choice(_DIGITS) for _ in range(digits))
