"""An OpenAPI document as a typed client: a module of Python that needs nothing but `msgspec`. Pure.

Every operation is a method; its parameters are arguments, its answer is a struct. Answers that are
streams of events are iterators.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Final

from interlock.catalog.schemas.json_schema import Schema
from interlock.catalog.schemas.openapi import EVENT
from interlock.catalog.schemas.openapi_checks import METHODS, resolve
from interlock.catalog.schemas.python_types import (
    WIDTH,
    Types,
    attribute_name,
    docstring,
    quoted,
)
from interlock.catalog.schemas.wrappers import operation_name

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_LONG: Final = 490
_OWN: Final = frozenset({"close", "headers", "timeout", "url"})

_HEAD: Final = """
from __future__ import annotations

import http.client
{ssl}from collections.abc import {abc}
from typing import {typing}
from urllib.parse import {parse}

import msgspec

_JSON = "application/json"
{events}"""

_REFUSED: Final = '''

class Refused(Exception):
    """The server answered with something else than what was asked for."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500].decode('utf-8', 'replace')}")
        self.status = status
        self.body = body

    @property
    def said(self) -> Any:
        """What the server said, if it is JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


class Client:
    """%(about)s"""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: where the server is, without a path of an operation. `token`: sent as bearer."""
        self._parts = urlsplit(url)
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise ValueError(f"{url!r} is no http or https address")
        self.headers = dict(headers or {})
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.timeout = timeout
        self._ssl_context = ssl_context

    def __repr__(self) -> str:
        return f"Client({self._parts.scheme}://{self._parts.netloc})"
'''

_ASKING: Final = '''
    # -- asking

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        sent: Any,
        accept: str,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = self._parts
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self.timeout, context=self._ssl_context
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname or "", parts.port, timeout=self.timeout
            )
        asked = [(name, _text(one)) for name, many in query.items() for one in _each(many)]
        target = parts.path.rstrip("/") + path + (f"?{urlencode(asked)}" if asked else "")
        headers = {**self.headers, "Accept": accept}
        for name, value in (fields or {}).items():
            if value is not None:
                headers[name] = _text(value)
        body = None
        if sent is not msgspec.UNSET:
            body = msgspec.json.encode(sent)
            headers["Content-Type"] = _JSON
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise Refused(answer.status, answer.read())
        except BaseException:
            connection.close()
            raise
        return connection, answer

    def _ask(
        self,
        method: str,
        path: str,
        kinds: tuple[Any, ...],
        query: Mapping[str, Any],
        sent: Any,
        fields: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer, as the first of these types that it fits. Without any it is not read."""
        accept = "*/*" if kinds == (bytes,) else _JSON
        connection, answer = self._open(method, path, query, sent, accept, fields)
        try:
            body = answer.read()
        finally:
            connection.close()
        return body if kinds == (bytes,) else _decoded(body, kinds) if kinds else None
'''

_FOLLOWING: Final = '''
    def _follow(
        self,
        path: str,
        kinds: tuple[Any, ...],
        query: Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:
        """What each event tells, until the server ends the stream or nobody listens any more."""
        connection, answer = self._open("GET", path, query, msgspec.UNSET, _EVENTS, fields)
        try:
            data: list[bytes] = []
            for line in answer:
                said = line.rstrip(b"\\r\\n")
                if said.startswith(b"data:"):
                    data.append(said[5:].removeprefix(b" "))
                elif not said and data:
                    yield _decoded(b"\\n".join(data), kinds)
                    data = []
        finally:
            connection.close()
'''

_FUNCTIONS: Final = """

def _decoded(body: bytes, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds[:-1]:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            continue
    return msgspec.json.decode(body, type=kinds[-1])


def _each(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
"""

_PATH: Final = """

def _path(value: Any) -> str:
    return quote(_text(value), safe="")
"""


def module_name(file: str) -> str:
    """`openapi/interlock.v1.yaml` → `interlock_v1_client`."""
    stem = PurePosixPath(file).name.removesuffix(".yaml")
    return f"{attribute_name(stem)}_client"


def module(document: Schema) -> tuple[str, str]:
    """The docstring of the module, and the rest of it."""
    info = document["info"]
    rest = _body(document)
    long = " Longer than 500 lines because it is generated." if rest.count("\n") > _LONG else ""
    return docstring(f"A typed client of {info['title']} {info['version']}.{long}", ""), rest


def _body(document: Schema) -> str:
    methods = _Methods(document)
    made = "".join(methods.made())
    types = methods.types.text()
    about = str(document["info"].get("description") or document["info"]["title"])
    shown = docstring(about, "    ").strip()[3:-3]
    streams = methods.streams
    typing = ["Any", *(["Literal"] if "Literal[" in types or "Literal[" in made else [])]
    parse = [*(["quote"] if methods.in_path else []), "urlencode", "urlsplit"]
    return "".join(
        (
            _HEAD.format(
                ssl="import ssl\n",
                abc=", ".join([*(["Iterator"] if streams else []), "Mapping"]),
                typing=", ".join(typing),
                parse=", ".join(parse),
                events='_EVENTS = "text/event-stream"\n' if streams else "",
            ),
            f"\n\n{types}" if types.startswith("class") else f"\n{types}" if types else "",
            _REFUSED % {"about": shown},
            made,
            _ASKING,
            _FOLLOWING if streams else "",
            _FUNCTIONS,
            _PATH if methods.in_path else "",
        )
    )


class _Methods:
    def __init__(self, document: Schema) -> None:
        self._document = document
        self.types = Types(document)
        self.streams = False
        self.in_path = False
        self._names: set[str] = set(_OWN)

    def made(self) -> list[str]:
        texts = []
        for path, item in self._document.get("paths", {}).items():
            found = resolve(self._document, item)
            for method in METHODS if isinstance(found, dict) else ():
                operation = found.get(method)
                if not isinstance(operation, dict):
                    continue
                if self._takes_json(operation):
                    texts.append(self._method(path, method, operation, found))
                else:
                    texts.append(
                        f"\n    # {method.upper()} {path} takes no JSON: it is left out.\n"
                    )
        return texts

    def _method(self, path: str, verb: str, operation: Schema, item: Schema) -> str:
        title = operation_name(operation, path, verb)
        name = self._free(attribute_name(title))
        said = [*item.get("parameters", []), *operation.get("parameters", [])]
        parameters = [resolve(self._document, one) for one in said]
        required, optional = [], []
        query: list[str] = []
        fields: list[str] = []
        target = path
        for one in parameters:
            argument = attribute_name(one["name"])
            kind = self.types.of(one.get("schema"), f"{title}{one['name'].capitalize()}")
            if one["in"] == "path":
                self.in_path = True
                target = target.replace(f"{{{one['name']}}}", f"{{_path({argument})}}")
                required.append(f"{argument}: {kind}")
            elif one["in"] in ("query", "header"):
                wanted = query if one["in"] == "query" else fields
                wanted.append(f"{quoted(one['name'])}: {argument}")
                if one.get("required") is True:
                    required.append(f"{argument}: {kind}")
                else:
                    optional.append(
                        f"{argument}: {kind if kind == 'Any' else _or_none(kind)} = None"
                    )
        sent = self._sent(operation, title, required, optional)
        kinds, stream = self._answer(operation, title)
        shown = " | ".join(kinds) or "None"
        if stream:
            self.streams = True
        arguments = ["self", *required, *(["*", *optional] if optional else [])]
        answer = f"Iterator[{shown}]" if stream else shown
        address = f'f"{target}"' if "{_path(" in target else quoted(target)
        asked = "{" + ", ".join(query) + "}"
        tuple_ = f"({', '.join(kinds)}{',' if len(kinds) == 1 else ''})"
        about = operation.get("description") or operation.get("summary") or f"{verb.upper()} {path}"
        called = (
            ["self._follow", address, tuple_, asked]
            if stream
            else ["self._ask", quoted(verb.upper()), address, tuple_, asked, sent]
        )
        if fields:
            called.append("{" + ", ".join(fields) + "}")
        return (
            "\n"
            + _call(f"    def {name}", arguments, f" -> {answer}:", "    ")
            + docstring(_sentence(str(about)), "        ")
            + _returned(called, shown, stream)
        )

    def _takes_json(self, operation: Schema) -> bool:
        body = resolve(self._document, operation.get("requestBody"))
        return not isinstance(body, dict) or _JSON in body["content"]

    def _sent(self, operation: Schema, title: str, required: list[str], optional: list[str]) -> str:
        """The argument that is the body, as it is written into the call."""
        body = resolve(self._document, operation.get("requestBody"))
        if not isinstance(body, dict):
            return "msgspec.UNSET"
        schema = body["content"].get(_JSON, {}).get("schema")
        kind = self.types.of(schema, f"{title}Body")
        name = attribute_name(kind) if re.fullmatch(r"[A-Z]\w*", kind) and kind != "Any" else "body"
        taken = {one.partition(":")[0] for one in (*required, *optional)}
        while name in taken:
            name += "_"
        if body.get("required") is True:
            required.append(f"{name}: {kind}")
        else:
            optional.append(f"{name}: {_or_none(kind)} = None")
            return f"msgspec.UNSET if {name} is None else {name}"
        return name

    def _answer(self, operation: Schema, title: str) -> tuple[list[str], bool]:
        """What a good answer can be, and whether it is a stream."""
        for status, one in operation["responses"].items():
            if not status.startswith("2"):
                continue
            content = resolve(self._document, one).get("content", {})
            if _JSON in content:
                return self._kinds(content[_JSON].get("schema"), title), False
            if _EVENTS in content:
                return self._kinds(content[_EVENTS].get(EVENT), title), True
            if content:
                return ["bytes"], False
        return [], False

    def _kinds(self, schema: Any, title: str) -> list[str]:
        return self.types.whole(schema, f"{title}Answer")

    def _free(self, name: str) -> str:
        free, number = name, 2
        while free in self._names:
            free, number = f"{name}_{number}", number + 1
        self._names.add(free)
        return free


def _or_none(kind: str) -> str:
    return kind if "None" in kind.split(" | ") else f"{kind} | None"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _returned(called: list[str], shown: str, stream: bool) -> str:
    function, *arguments = called
    if stream:
        return _call(f"        return {function}", arguments, "", "        ")
    if shown == "None":
        return _call(f"        {function}", arguments, "", "        ")
    annotated = f"        answer: {shown} = {function}"
    return _call(annotated, arguments, "", "        ") + "        return answer\n"


def _call(start: str, arguments: list[str], end: str, indent: str) -> str:
    """Something in parentheses: on one line if it fits, else as formatters break it."""
    line = f"{start}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return f"{line}\n"
    inside = f"{indent}    {', '.join(arguments)}"
    if len(inside) <= WIDTH:
        return f"{start}(\n{inside}\n{indent}){end}\n"
    each = "".join(_argument(one, f"{indent}    ") for one in arguments)
    return f"{start}(\n{each}{indent}){end}\n"


def _argument(text: str, indent: str) -> str:
    """One argument on a line of its own; of a mapping that is too long each member is."""
    if len(indent) + len(text) < WIDTH or not text.startswith("{"):
        return f"{indent}{text},\n"
    members = "".join(f"{indent}    {one},\n" for one in text[1:-1].split(", "))
    return f"{indent}{{\n{members}{indent}}},\n"
