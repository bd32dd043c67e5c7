"""Calls that a service makes keep the rank and the deadline of the request they are made for.

One file without dependencies: copy it. It takes `overload-context`, `traceparent` and `x-request-id` of the
request that is being served, and puts them on the calls that are made meanwhile. Who traces with
OpenTelemetry needs none of this behind a sidecar: `traceparent` is enough.

    app = tidegate.WSGI(app)                          # Flask, Django, anything of WSGI
    app = tidegate.ASGI(app)                          # FastAPI, Starlette, anything of ASGI
    with tidegate.inside(request.headers): ...        # anything else

    tidegate.install()                                # urllib.request
    session.mount('http://', tidegate.adapter())      # requests; the same for https://
    httpx.Client(event_hooks={'request': [tidegate.hook]})
    httpx.AsyncClient(event_hooks={'request': [tidegate.async_hook]})
    headers.update(tidegate.headers())                # anything else

What belongs to a request follows it through `await` and into tasks. A thread that is started by hand does
not know it: start it with `contextvars.copy_context().run`.
"""

import contextlib
import contextvars
import re
import time
import urllib.request

CONTEXT = "overload-context"
_COPIED = ("traceparent", "tracestate", "x-request-id")

# A member of a dictionary of RFC 9651: a key and a string, an inner list, or anything else; parameters say
# nothing and are dropped.
_MEMBER = re.compile(
    r'\s*([a-z*][a-z0-9_.*-]*)(=(?:%?"(?:[^"\\]|\\.)*"|\([^)]*\)|[^,;\s"(]+))?(?:;[^,"]*)?\s*(?:,|$)'
)
# The attempt, the process that calls, what waits at it and what it shed are the caller's own.
_OWN = ("a", "c", "q", "s")
_NUMBER = re.compile(r"=\d{1,15}(\.\d{1,3})?")
# As a gate reads it; longer ones are nobody's.
_LONGEST = 1024

_current = contextvars.ContextVar("tidegate", default=None)


class _Request:
    """What one request brought, and when."""

    def __init__(self, headers):
        known = {name.lower(): value for name, value in dict(headers).items()}
        self.since = time.monotonic()
        self.fields = {name: known[name] for name in (CONTEXT, *_COPIED) if name in known}

    def headers(self):
        fields = {name: value for name, value in self.fields.items() if name != CONTEXT}
        spent = (time.monotonic() - self.since) * 1000
        context = pass_on(self.fields.get(CONTEXT, ""), spent)
        if context:
            fields[CONTEXT] = context
        return fields


def pass_on(context, spent):
    """A context as it travels on, `spent` milliseconds after it was received; empty if it is malformed."""
    members, at = [], 0
    if len(context) > _LONGEST:
        return ""
    while at < len(context):
        member = _MEMBER.match(context, at)
        if member is None:
            return ""
        at = member.end()
        key, value = member.group(1), (member.group(2) or "").strip()
        if key == "d":
            if not _NUMBER.fullmatch(value):
                return ""
            value = f"={max(0.0, float(value[1:]) - spent):.3f}".rstrip("0").rstrip(".")
        if key not in _OWN:
            members.append(key + value)
    return ", ".join(members)


@contextlib.contextmanager
def inside(headers):
    """Whatever is called within is called for the request with these headers."""
    token = _current.set(_Request(headers))
    try:
        yield
    finally:
        _current.reset(token)


def headers():
    """What a call sends that is made now; nothing outside of any request."""
    request = _current.get()
    return request.headers() if request else {}


class WSGI:
    """Serves each request of a WSGI application as itself, to the end of its answer."""

    def __init__(self, app):
        self.app = app

    def __call__(self, environ, start_response):
        fields = {
            name[5:].replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        # An answer that comes in pieces is made in pieces: each of them is made for its request.
        context = contextvars.copy_context()
        context.run(_current.set, _Request(fields))
        answer = context.run(self.app, environ, start_response)
        return _Pieces(context, answer)


class _Pieces:
    def __init__(self, context, answer):
        self.context, self.answer = context, answer
        self.pieces = context.run(iter, answer)

    def __iter__(self):
        return self

    def __next__(self):
        return self.context.run(next, self.pieces)

    def close(self):
        close = getattr(self.answer, "close", None)
        if close:
            self.context.run(close)


class ASGI:
    """Serves each request of an ASGI application as itself."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        fields = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope.get("headers", [])
        }
        with inside(fields):
            return await self.app(scope, receive, send)


class _Handler(urllib.request.BaseHandler):
    def http_request(self, request):
        for name, value in headers().items():
            if not request.has_header(name.capitalize()):
                request.add_unredirected_header(name, value)
        return request

    https_request = http_request


def install(*handlers):
    """Calls by `urllib.request.urlopen` carry what they should."""
    urllib.request.install_opener(urllib.request.build_opener(_Handler, *handlers))


def adapter(**options):
    """A transport of `requests` whose calls carry what they should."""
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def add_headers(self, request, **_):
            for name, value in headers().items():
                request.headers.setdefault(name, value)

    return Adapter(**options)


def hook(request):
    """For `httpx.Client`: its calls carry what they should."""
    for name, value in headers().items():
        request.headers.setdefault(name, value)


async def async_hook(request):
    """For `httpx.AsyncClient`."""
    hook(request)
