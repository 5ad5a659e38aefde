"""Literal secrets of a client's config become references to environment variables.

Works on one import. The values are looked at here, to tell whether two are the same, and go
nowhere else: what comes out has names only.
"""

from __future__ import annotations

import re
from itertools import chain, count
from typing import Final

from msgspec import Struct

from interlock.core.config.problems import BadValue
from interlock.core.config.secrets import EnvReference, escape, pieces, references
from interlock.core.redaction import is_secret_key, is_secret_value

_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token|Digest)\s+", re.IGNORECASE)
_NOT_VARIABLE: Final = re.compile(r"[^A-Z0-9]+")
_QUERY: Final = re.compile(r"(?P<before>[?&](?P<key>[\w.-]+)=)(?P<value>[^&#]+)")
_PASSWORD: Final = re.compile(r"(?<=://)(?P<user>[^/?#@:]*):(?P<value>[^/?#@]+)@")
_LONG_SEGMENT: Final = re.compile(
    r"(?<=/)(?=[^/?#]*[0-9])(?=[^/?#]*[A-Za-z])[A-Za-z0-9_-]{32,}(?=[/?#]|$)"
)
_MENTIONED: Final = re.compile(r"(?:\$\{(?:env:)?|\")([A-Za-z_][A-Za-z0-9_]*)(?=[}:\"])(?!\"\s*:)")
_OPTION: Final = re.compile(r"(?P<key>-{0,2}[A-Za-z_][\w.-]*)=(?P<value>.+)", re.DOTALL)
_HEADER: Final = re.compile(
    r"(?P<key>(?:proxy-)?authorization|cookie|x-[\w-]+):(?P<gap>\s*)(?P<value>.+)",
    re.IGNORECASE | re.DOTALL,
)
_HARMLESS: Final = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none"})
_PATH_NAME: Final = re.compile(r"(?:FILE|PATH|DIR|FOLDER|CREDENTIALS)$", re.IGNORECASE)
_PATH_VALUE: Final = re.compile(r"(?:~|\.{0,2}/|[A-Za-z]:\\)")


class Variable(Struct, frozen=True, order=True):
    """An environment variable to set before the node starts, and where it is used."""

    name: str
    used_by: str
    description: str = ""


def variable_name(*words: str) -> str:
    """`("my server", "X-Api-Key")` → `MY_SERVER_X_API_KEY`."""
    name = _NOT_VARIABLE.sub("_", "_".join(words).upper()).strip("_")
    return name if name and not name[0].isdigit() else f"_{name}"


class SecretReplacer:
    """Replaces literal secrets by references, and remembers which variables must be set."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self._values: dict[str, str | None] = {}

    def reserve(self, text: str) -> None:
        """Keep the names of variables that a client's file mentions for what they stand for."""
        for name in _MENTIONED.findall(text):
            self._values.setdefault(name, None)

    def needs(self, name: str, used_by: str, description: str = "") -> str:
        """A variable that the client's file refers to already."""
        self._values.setdefault(name, None)
        self.variables.setdefault(name, Variable(name, used_by, description))
        return name

    def environment(self, server: str, key: str, value: str) -> str:
        """The value of an environment variable of a server."""
        return self._pair(server, key, value, f"servers.{server}.env.{key}", (key,), (server, key))

    def header(self, server: str, key: str, value: str) -> str:
        """The value of an HTTP header of a server."""
        words = (server, "token") if key.lower() == "authorization" else (server, key)
        return self._pair(server, key, value, f"servers.{server}.headers.{key}", words, words)

    def url(self, server: str, url: str) -> str:
        """A URL: its password, its secret query parameters, the long random parts of its path."""
        place = f"servers.{server}.url"

        def query(match: re.Match[str]) -> str:
            key, value = match["key"], match["value"]
            words = (server, key)
            return match["before"] + self._pair(server, key, value, place, words, words)

        def password(match: re.Match[str]) -> str:
            words = (server, "password")
            return f"{match['user']}:{self._lifted(match['value'], place, words, words)}@"

        def segment(match: re.Match[str]) -> str:
            return self._lifted(match[0], place, (server, "url_secret"), (server, "url_secret"))

        if not _is_literal(url):
            return url
        lifted = _PASSWORD.sub(password, url)
        head, mark, tail = lifted.partition("?")
        return _LONG_SEGMENT.sub(segment, head) + _QUERY.sub(query, mark + tail)

    def arguments(self, server: str, args: list[str]) -> list[str]:
        """Arguments: `--token x`, `--token=x`, `KEY=x` and `Authorization: x`."""
        place = f"servers.{server}.args"
        lifted: list[str] = []
        flag = ""
        for arg in args:
            lifted.append(self._argument(server, flag, arg, place))
            flag = arg if re.fullmatch(r"--?[A-Za-z][\w-]*", arg) else ""
        return lifted

    def _argument(self, server: str, flag: str, arg: str, place: str) -> str:
        if flag and not arg.startswith("-") and is_secret_key(flag):
            words = (server, flag)
            return self._pair(server, flag, arg, place, words, words)
        header = _HEADER.fullmatch(arg)
        if header is not None:
            value = self.header(server, header["key"], header["value"])
            return f"{header['key']}:{header['gap']}{value}"
        option = _OPTION.fullmatch(arg)
        if option is not None:
            key, value = option["key"], option["value"]
            first = (server, key) if key.startswith("-") else (key,)
            return f"{key}={self._pair(server, key, value, place, first, (server, key))}"
        words = (server, "secret")
        return self._pair(server, "", arg, place, words, words)

    def _pair(
        self,
        server: str,
        key: str,
        value: str,
        place: str,
        first: tuple[str, ...],
        second: tuple[str, ...],
    ) -> str:
        if not _is_literal(value):
            return self._around_references(key, value, place, second)
        if value.lower() in _HARMLESS:
            return value
        is_path = _PATH_NAME.search(key) and _PATH_VALUE.match(value)
        if is_secret_value(value) or (is_secret_key(key) and not is_path):
            return self._lifted(value, place, first, second)
        return value

    def _around_references(self, key: str, value: str, place: str, words: tuple[str, ...]) -> str:
        """A value that refers already: its secret defaults go, and so do known tokens beside."""
        result = ""
        for piece in pieces(value):
            if isinstance(piece, str):
                secret = is_secret_value(piece)
                result += self._lifted(piece, place, words, words) if secret else escape(piece)
            elif isinstance(piece, EnvReference) and (piece.default or "").lower() not in _HARMLESS:
                named = is_secret_key(key) or is_secret_key(piece.name)
                if named or is_secret_value(piece.default or ""):
                    piece = EnvReference(self.needs(piece.name, place), None)
                result += str(piece)
            else:
                result += str(piece)
        return result

    def _lifted(
        self, value: str, place: str, first: tuple[str, ...], second: tuple[str, ...]
    ) -> str:
        scheme = _SCHEME.match(value)
        secret = value[scheme.end() :] if scheme else value
        name = self._name(secret, variable_name(*first), variable_name(*second))
        self._values[name] = secret
        self.variables.setdefault(name, Variable(name, place))
        return f"{scheme[0] if scheme else ''}${{env:{name}}}"

    def _name(self, secret: str, first: str, second: str) -> str:
        """The first name that is free, or already stands for this very secret."""
        for name in chain((first, second), (f"{second}_{n}" for n in count(2))):
            if self._values.get(name, secret) == secret:
                return name
        raise AssertionError("count() never ends")


def _is_literal(value: str) -> bool:
    try:
        return not references(value)
    except BadValue:
        return True
