"""An OpenAPI document as a typed client: a module of Python that needs nothing but `msgspec`. Pure.

Every operation is a method; its parameters are arguments, its answer is a struct. Answers that are
streams of events are iterators.
"""

from __future__ import annotations

import builtins
import keyword
import re
import textwrap
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Final

from interlock.contracts.schemas.drift import merged
from interlock.contracts.schemas.json_schema import SECRET, Schema
from interlock.contracts.schemas.openapi import EVENT, METHODS, resolve
from interlock.contracts.schemas.wrappers import camel, operation_name

# -- Schemas of an OpenAPI document as types of Python: `msgspec` structs, literals and aliases.
# Pure.
#
# The text is in the form that formatters leave alone.

WIDTH: Final = 100
_SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_MOST_DEPTH: Final = 8
"""An object so deep in others, none of which has a name, is any object."""
_IN_USE: Final = frozenset({"bool", "dict", "float", "int", "list", "msgspec", "self", "str"})
"""Names without which a type could not be written."""
_TAKEN: Final = frozenset({"Any", "Client", "Iterator", "Literal", "Refused"})


class Types:
    """The types of one document. Inline objects get names when they are met."""

    def __init__(self, document: Schema) -> None:
        self._document = document
        self._depth = 0
        """How many objects without a name are around the one that is looked at."""
        components = {
            name: merged(one, document) if isinstance(one, dict) else one
            for name, one in document.get("components", {}).get("schemas", {}).items()
        }
        self._schemas: dict[str, Any] = dict(components)
        self._names = {one: self._named(one) for one in components}
        self._structs: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._unions = {name for name, one in components.items() if _is_union(one)}
        for name, schema in components.items():
            self._add(self._names[name], schema)

    def text(self) -> str:
        """All of them: words first, then structs, then what is made of both."""
        words = [one for one in self._aliases.values() if " = Literal[" in one]
        others = [one for one in self._aliases.values() if " = Literal[" not in one]
        parts = ["".join(words), *self._structs.values(), "".join(others)]
        return "\n\n".join(one for one in parts if one)

    def of(self, schema: Any, hint: str = "Value") -> str:
        """The type of a schema, as an annotation. `hint`: what is called so that has no name."""
        if not isinstance(schema, dict) or not schema:
            return "Any"
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            # How a reference is given a description of its own.
            schema = {**parts[0], **{key: one for key, one in schema.items() if key != "allOf"}}
        elif isinstance(parts, list):
            schema = merged(schema, self._document)
        ref = schema.get("$ref")
        if isinstance(ref, str):
            name = ref.rpartition("/")[2]
            # Nobody can tell the members of a union of structs apart inside another one.
            return "Any" if name in self._unions else self._names.get(name, "Any")
        for keyword_ in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword_), list):
                return self._choice(schema[keyword_], hint)
        if isinstance(schema.get("enum"), list):
            return literal(schema["enum"])
        if "const" in schema:
            return literal([schema["const"]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union(self._of_kind({**schema, "type": one}, one, hint) for one in kinds)
        return self._of_kind(schema, kinds, hint)

    def whole(self, schema: Any, hint: str) -> list[str]:
        """The types that an answer can be of, the first that fits being meant."""
        name = str(schema.get("$ref", "")).rpartition("/")[2] if isinstance(schema, dict) else ""
        if name in self._unions:
            return [self.of(one, hint) for one in self._schemas[name]["anyOf"]]
        return [self.of(schema, hint)]

    # -- making

    def _of_kind(self, schema: Schema, kind: Any, hint: str) -> str:
        if kind == "array":
            return f"list[{self.of(schema.get('items'), hint)}]"
        if kind == "object" or "properties" in schema:
            if schema.get("properties") and self._depth < _MOST_DEPTH:
                name = self._free(camel(hint))
                self._depth += 1
                self._add(name, schema)
                self._depth -= 1
                return name
            return f"dict[str, {self.of(schema.get('additionalProperties'), hint)}]"
        return _SCALARS.get(kind, "Any")

    def _choice(self, options: list[Any], hint: str) -> str:
        kinds = [self.of(one, hint) for one in options]
        structs = [one for one in kinds if one in self._structs or one in self._names.values()]
        # msgspec decodes at most one of a kind.
        return "Any" if len(structs) > 1 else _union(kinds)

    def _add(self, name: str, schema: Any) -> None:
        if isinstance(schema, dict) and schema.get("properties") is not None:
            self._structs[name] = ""
            self._structs[name] = self._struct(name, schema)
            return
        if _is_union(schema):
            kinds = [
                self._names.get(one["$ref"].rpartition("/")[2], "Any") for one in schema["anyOf"]
            ]
            text = " | ".join(kinds)
        else:
            text = self.of(schema, name)
        about = docstring(_about(schema), "") if _about(schema) else ""
        self._aliases[name] = f"{_assigned(name, text)}{about}"

    def _struct(self, name: str, schema: Schema) -> str:
        required = schema.get("required", [])
        lines = [f"class {name}(msgspec.Struct, kw_only=True, omit_defaults=True):\n"]
        about = _about(schema)
        if about:
            lines.append(docstring(about, "    "))
        fields = []
        taken: set[str] = set()
        properties = schema["properties"]
        for member, one in properties.items():
            attribute = attribute_name(member)
            while attribute in taken:
                attribute += "_"
            taken.add(attribute)
            kind = self.of(one, f"{name}{camel(member)}")
            given = _default(member, attribute, kind, required=member in required)
            if member not in required and kind != "Any" and "None" not in kind.split(" | "):
                kind = f"{kind} | None"
            fields.append(_annotated(attribute, kind, given))
            if isinstance(one, dict) and one.get("description"):
                fields.append(docstring(one["description"], "    "))
        if about and fields:
            lines.append("\n")
        if any(
            isinstance(one, dict) and one.get("format") == SECRET for one in properties.values()
        ):
            fields.append(f'\n    def __repr__(self) -> str:\n        return "{name}(…)"\n')
        return "".join(lines + fields) if about or fields else f"{lines[0]}    pass\n"

    # -- names

    def _named(self, component: str) -> str:
        name = camel(component.replace(".", " ")) or "Type"
        return f"{name}Type" if name in _TAKEN or hasattr(builtins, name) else name

    def _free(self, name: str) -> str:
        number, free = 2, name
        while free in self._structs or free in self._names.values():
            free, number = f"{name}{number}", number + 1
        return free


def _is_union(schema: Any) -> bool:
    """A choice between things that have names."""
    options = schema.get("anyOf") if isinstance(schema, dict) else None
    return (
        isinstance(options, list)
        and len(options) > 1
        and all(isinstance(one, dict) and isinstance(one.get("$ref"), str) for one in options)
    )


def _about(schema: Any) -> str:
    return str(schema.get("description") or "") if isinstance(schema, dict) else ""


def _default(member: str, attribute: str, kind: str, *, required: bool) -> str:
    """What stands behind `=`."""
    if attribute == member:
        return "" if required else "None"
    name = quoted(member)
    return (
        f"msgspec.field(name={name})" if required else f"msgspec.field(name={name}, default=None)"
    )


def _annotated(attribute: str, kind: str, given: str) -> str:
    line = f"    {attribute}: {kind}" + (f" = {given}" if given else "")
    if len(line) <= WIDTH:
        return f"{line}\n"
    if kind.startswith("Literal["):
        return f"    {attribute}: {_exploded(kind, '    ')}{f' = {given}' if given else ''}\n"
    return f"    {attribute}: {kind} = (\n        {given}\n    )\n" if given else f"{line}\n"


def _assigned(name: str, text: str) -> str:
    line = f"{name} = {text}\n"
    if len(line) <= WIDTH + 1 or not text.startswith("Literal["):
        return line
    return f"{name} = {_exploded(text, '')}\n"


def _exploded(text: str, indent: str) -> str:
    """`Literal["a", "b"]` with a line for each word."""
    words = re.findall(r'"(?:[^"\\]|\\.)*"|[^,\[\]\s]+', text[len("Literal[") : -1])
    return "Literal[\n" + "".join(f"{indent}    {one},\n" for one in words) + f"{indent}]"


def literal(words: Iterable[Any]) -> str:
    """The words of an enum as a type."""
    known = [one for one in words if isinstance(one, str | int | bool) or one is None]
    shown = [quoted(one) if isinstance(one, str) else repr(one) for one in known]
    return f"Literal[{', '.join(shown)}]" if shown else "Any"


def _union(kinds: Iterable[str]) -> str:
    found = list(dict.fromkeys(kinds))
    if "Any" in found:
        return "Any"
    return " | ".join(
        [one for one in found if one != "None"] + [one for one in found if one == "None"]
    )


def attribute_name(member: str) -> str:
    """The name of a member as Python has it: `participantId` → `participant_id`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", member)
    name = re.sub(r"\W+", "_", parted).strip("_").lower() or "value"
    if name[0].isdigit():
        name = f"n{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _IN_USE else name


def quoted(text: str) -> str:
    """A text as Python has it, in double quotes unless that needs more escapes."""
    # repr chooses its quotes itself; with both kinds in the text it takes single ones.
    inside = repr(text + "'\"")[1:-4].replace("\\'", "'")
    if text.count('"') > text.count("'"):
        return "'" + inside.replace("'", "\\'") + "'"
    return '"' + inside.replace('"', '\\"') + '"'


def docstring(text: str, indent: str) -> str:
    """A text as a docstring, in lines that fit."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"""', "'''")
    if plain.endswith('"'):
        plain = plain[:-1] + '\\"'
    lines = textwrap.wrap(
        f'"""{plain}', WIDTH - len(indent) - 3, break_long_words=False, break_on_hyphens=False
    )
    if len(lines) > 1:
        lines = textwrap.wrap(
            f'"""{plain}', WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
        )
        return "".join(f"{indent}{one}\n" for one in lines) + f'{indent}"""\n'
    return f'{indent}{lines[0]}"""\n'


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
