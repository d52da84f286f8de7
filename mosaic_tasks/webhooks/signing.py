"""The headers of a webhook as Standard Webhooks 1.0 has them (standardwebhooks.com), whose libraries verify them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable


def signed_headers(
    secrets: Iterable[bytes], *, message: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """What a receiver knows the sender by.

    Args:
        secrets: a signature is made with each, so that receivers can change over from one to the next.
        message: id of the message, the same each time it is sent.
        timestamp_s: when it is sent; receivers refuse what is old.
    """
    signatures = [_signature(secret, message, timestamp_s, body) for secret in secrets]
    return {
        "webhook-id": message,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(signatures),
    }


def _signature(secret: bytes, message: str, timestamp_s: int, body: bytes) -> str:
    digest = hmac.digest(secret, b"%s.%d.%s" % (message.encode(), timestamp_s, body), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"
