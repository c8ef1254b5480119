"""Access control of the board: requests need its token, one of its own pages, and a name of this machine.

A page of another site can make a browser send requests to 127.0.0.1. It cannot read the token, so it has no cookie that
the browser would send along (SameSite), its requests carry another Origin, and a name of its own that it makes resolve
to 127.0.0.1 (DNS rebinding) is not a name of this machine.
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS = ("GET", "HEAD")
OPEN_PATHS = ("/static/",)
ACTION_HEADER = "x-tenfold-action"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The secrets of one server."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    names: frozenset[str] = frozenset()
    """Other names of this machine by which the page may be opened."""

    @property
    def action_token(self) -> str:
        """The token that a page sends with every change; the cookie alone is not enough."""
        return hmac.new(self.token.encode(), b"action", hashlib.sha256).hexdigest()

    @property
    def cookie(self) -> str:
        """The name of the cookie, which differs for servers on other ports of this machine."""
        return f"tenfold-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"


class Guard:
    """Refuses requests that do not come from a page of this server, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[-1]
        has_token = _same(given, self.access.token)
        refusal = self._refusal(scope, headers, has_token)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer[name] = value
                if has_token and refusal is None:
                    answer.append(
                        "set-cookie",
                        f"{self.access.cookie}={self.access.token}; Path=/; HttpOnly; SameSite=Strict",
                    )
            await send(message)

        answer = self.app if refusal is None else PlainTextResponse(refusal, status_code=403)
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers, has_token: bool) -> str | None:
        """Return the reason why a request is refused; None if it is accepted."""
        if not is_own_name(headers.get("host", ""), self.access.names):
            return "this page is only served under the names of this machine, such as 127.0.0.1"
        if not _is_own_origin(scope, headers):
            return "requests of other pages are refused"
        if scope["path"].startswith(OPEN_PATHS) and scope["method"] in SAFE_METHODS:
            return None
        if not has_token and not _same(_cookies(headers).get(self.access.cookie, ""), self.access.token):
            return "this page needs the token of its server: open the address that `tenfold board` printed"
        if scope["method"] not in SAFE_METHODS:
            if "origin" not in headers:
                return "requests that change something must come from a page of this server"
            if not _same(headers.get(ACTION_HEADER, ""), self.access.action_token):
                return "this page is of an earlier server: reload it"
        return None


def is_own_name(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header names this machine; IP addresses are safe from DNS rebinding."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in {"localhost", socket.gethostname().lower(), *names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own_origin(scope: Scope, headers: Headers) -> bool:
    """Return whether a request comes from a page of this server, was typed in by a person, or follows a link.

    A link only shows a page: no change is accepted from another site, whatever it claims to be.
    """
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return is_link and scope["method"] in SAFE_METHODS
    origin = headers.get("origin")
    return origin is None or origin == f"{scope.get('scheme', 'http')}://{headers.get('host')}"


def _cookies(headers: Headers) -> Mapping[str, str]:
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())
