"""The files of the page: HTML, styles, scripts and an icon, as they lie beside this module, and their answers."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.http.requests import NOT_ALLOWED, NOT_MODIFIED, OK, READING, Answer, HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.http.requests import Request

ROOT: Final = "/page/"
"""The path of all files but the first, which is at `/`."""

FIRST: Final = "index.html"

KINDS: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types by the endings of names."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page may run its own scripts and ask its own router, and nothing else. No text that it shows becomes markup."""


class PageFile(NamedTuple):
    """One file."""

    body: bytes
    kind: str
    tag: str
    """Its entity tag (RFC 9110, 8.8.3): another one for other octets."""


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by their paths in a request."""
    found = {}
    for each in files(__package__).joinpath("page").iterdir():
        kind = KINDS.get(each.name.rpartition(".")[2])
        if kind is not None:
            body = each.read_bytes()
            path = "/" if each.name == FIRST else f"{ROOT}{each.name}"
            found[path] = PageFile(body, kind, f'"{sha256(body).hexdigest()[:20]}"')
    return found


def page_answer(request: Request) -> Answer | None:
    """Return the answer with a file; None: there is none at the path. Raises: HttpError: it can only be read."""
    file = page_files().get(request.path)
    if file is None:
        return None
    if request.method not in READING:
        raise HttpError(NOT_ALLOWED, "the page is read only", ("Allow", "GET, HEAD"))
    headers = (
        ("Cache-Control", "no-cache"),  # it may be kept, and has to be asked for again: a router may be a newer one
        ("ETag", file.tag),
        ("Content-Security-Policy", POLICY),
        ("Cross-Origin-Opener-Policy", "same-origin"),
    )
    known = (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(","))
    if file.tag in known:
        return Answer(NOT_MODIFIED, headers=headers)
    return Answer(OK, file.body, file.kind, headers)
