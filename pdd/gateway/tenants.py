"""Whom a request belongs to: the header ``x-pdd-tenant`` over HTTP, the field ``tenant`` over gRPC.

Tenants never share cached blocks, an affinity key or an idempotency key, and share room fairly. The
name is taken on trust: whoever lets several customers in sets it at a proxy, which must remove what
the client sent.
"""

import re

from pdd.core.errors import InvalidRequest
from pdd.core.requests import DEFAULT_TENANT
from pdd.gateway.http_request import HttpRequest
from pdd.gateway.json_text import shorten

TENANT_HEADER = "x-pdd-tenant"
MAX_TENANT_CHARS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")


def tenant_of(http: HttpRequest) -> str:
    """The tenant that a request names, else the default one.

    Raises:
        InvalidRequest: it is no name, or it is named twice, as when a proxy adds a second one.
    """
    values = [value for name, value in http.headers if name == TENANT_HEADER.encode()]
    if not values:
        return DEFAULT_TENANT
    if len(values) > 1:
        raise _fault(TENANT_HEADER, f"is there {len(values)} times; send it once")
    return check_tenant(values[0].decode("latin-1"), field=TENANT_HEADER)


def check_tenant(name: str, *, field: str) -> str:
    """``name``, if it may be in logs, labels and keys. Raises InvalidRequest."""
    if _NAME.fullmatch(name) is None:
        raise _fault(
            field,
            f"{shorten(name)} must have 1 to {MAX_TENANT_CHARS} of the characters A-Z a-z 0-9 "
            ". _ : @ - and begin with a letter or digit",
        )
    return name


def _fault(field: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {what}", field=field, code="invalid_tenant")
