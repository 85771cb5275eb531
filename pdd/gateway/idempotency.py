"""``Idempotency-Key``: the name under which a request may be sent again without running twice."""

import hashlib

from pdd.core.errors import InvalidRequest
from pdd.gateway.json_text import shorten
from pdd.gateway.run import RunName

MAX_KEY_CHARS = 255


def run_name(key: str | None, *, path: str, tenant: str, body: bytes | bytearray) -> RunName | None:
    """The name of a request's run; None if it has no key, and so belongs to its client alone.

    Raises:
        InvalidRequest: the key is empty, too long, or has other characters than printable ASCII.
    """
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"idempotency-key {shorten(key)} must have 1 to {MAX_KEY_CHARS} printable ASCII "
            "characters",
            field="idempotency-key",
            code="invalid_idempotency_key",
        )
    digest = hashlib.blake2b(body, digest_size=16).digest()
    return RunName(path=path, tenant=tenant, key=key, digest=digest)


def unnamed(path: str, tenant: str) -> RunName:
    """For a request without a key that can be continued by its id alone."""
    return RunName(path=path, tenant=tenant, key="", digest=b"")
