"""One local page about runs, read-only, at an address that only who is told can know."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from base64 import b64encode
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from asyncmanifold.errors import InputError
from asyncmanifold.watch.followed_runs import FollowedRuns
from asyncmanifold.watch.prometheus_text import CONTENT_TYPE, prometheus_text

TOKEN_LENGTH = 16
"""The least number of characters of a token that somebody chooses."""
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'"


class WatchServer(ThreadingHTTPServer):
    """Answers GET requests below ``/TOKEN/``: the page, ``state`` for it, ``metrics`` for Prometheus."""

    daemon_threads = True

    def __init__(
        self, directory: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        """Listen; port 0 is any that is free."""
        self.runs = FollowedRuns(directory)
        self.token = token or secrets.token_urlsafe(18)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), WatchRequest)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"--host {host} --port {port}: cannot listen there: {reason}") from error

    @property
    def address(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a reader who has gone."""


class WatchRequest(BaseHTTPRequestHandler):
    """One request; there is nothing that a request can change."""

    server: WatchServer
    server_version, sys_version = "asyncmanifold", ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer with the page, its state or the metrics."""
        url = urlsplit(self.path)
        _, _, rest = url.path.partition("/")
        token, _, what = rest.partition("/")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._answer("not found\n", status=404)
        elif what == "":
            html, policy = page()
            self._answer(html, "text/html; charset=utf-8", policy=policy)
        elif what == "state":
            chosen = parse_qs(url.query).get("run", [None])[0]
            state = self.server.runs.state(chosen)
            self._answer(json.dumps(state, allow_nan=False), "application/json")
        elif what == "metrics":
            self._answer(prometheus_text(self.server.runs.follow()), CONTENT_TYPE)
        else:
            self._answer("not found\n", status=404)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def _answer(
        self,
        content: str,
        kind: str = "text/plain; charset=utf-8",
        *,
        status: int = 200,
        policy: str = NOTHING,
    ) -> None:
        body = content.encode()
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Security-Policy": policy, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


@cache
def page() -> tuple[str, str]:
    """Return the page, and the policy that lets it run its own script and ask its own server, no more."""
    assets = files("asyncmanifold").joinpath("report")
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("watch.css", "watch.js"))
    html = assets.joinpath("watch.html").read_text(encoding="utf-8")
    for mark, text in (("/* style */", style), ("/* script */", script)):
        html = html.replace(mark, text)
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    policy = (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def read_token(path: Path) -> str:
    """Return the token in a file; refuse one that could be guessed or does not fit into an address."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(token) < TOKEN_LENGTH or not all(c.isascii() and (c.isalnum() or c in "-_") for c in token):
        raise InputError(
            f"--token-file {path}: must hold at least {TOKEN_LENGTH} letters, digits, hyphens or underscores"
        )
    return token
