"""Replacement of literal secrets in the config of a client by references to environment variables.

Works on one import. Values are compared here and go nowhere else: the result only contains names.
"""

from __future__ import annotations

import re
from itertools import chain, count
from typing import Final

from msgspec import Struct

from interlock.core.config.problems import InvalidValueError
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
    """An environment variable that must be set before the node starts, and where it is used."""

    name: str
    used_by: str
    description: str = ""


def variable_name(*words: str) -> str:
    """Return the name of a variable: `("my server", "X-Api-Key")` → `MY_SERVER_X_API_KEY`."""
    name = _NOT_VARIABLE.sub("_", "_".join(words).upper()).strip("_")
    return name if name and not name[0].isdigit() else f"_{name}"


class SecretReplacer:
    """Replaces literal secrets by references, and collects the variables that must be set."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self._values: dict[str, str | None] = {}

    def reserve(self, text: str) -> None:
        """Reserve the variable names that a client's file mentions for their own values."""
        for name in _MENTIONED.findall(text):
            self._values.setdefault(name, None)

    def add_variable(self, name: str, used_by: str, description: str = "") -> str:
        """Add a variable that the client's file already refers to."""
        self._values.setdefault(name, None)
        self.variables.setdefault(name, Variable(name, used_by, description))
        return name

    def environment(self, server: str, key: str, value: str) -> str:
        """Return the value of an environment variable of a server."""
        return self._replace_if_secret(
            server, key, value, f"servers.{server}.env.{key}", (key,), (server, key)
        )

    def header(self, server: str, key: str, value: str) -> str:
        """Return the value of an HTTP header of a server."""
        words = (server, "token") if key.lower() == "authorization" else (server, key)
        return self._replace_if_secret(
            server, key, value, f"servers.{server}.headers.{key}", words, words
        )

    def url(self, server: str, url: str) -> str:
        """Return a URL without its password, secret query parameters and long random path parts."""
        used_by = f"servers.{server}.url"

        def query(match: re.Match[str]) -> str:
            key, value = match["key"], match["value"]
            words = (server, key)
            return match["before"] + self._replace_if_secret(
                server, key, value, used_by, words, words
            )

        def password(match: re.Match[str]) -> str:
            words = (server, "password")
            return f"{match['user']}:{self._replace(match['value'], used_by, words, words)}@"

        def segment(match: re.Match[str]) -> str:
            return self._replace(match[0], used_by, (server, "url_secret"), (server, "url_secret"))

        if not _is_literal(url):
            return url
        replaced = _PASSWORD.sub(password, url)
        head, mark, tail = replaced.partition("?")
        return _LONG_SEGMENT.sub(segment, head) + _QUERY.sub(query, mark + tail)

    def arguments(self, server: str, args: list[str]) -> list[str]:
        """Replace `--token x`, `--token=x`, `KEY=x` and `Authorization: x` in arguments."""
        used_by = f"servers.{server}.args"
        replaced: list[str] = []
        flag = ""
        for arg in args:
            replaced.append(self._replace_in_argument(server, flag, arg, used_by))
            flag = arg if re.fullmatch(r"--?[A-Za-z][\w-]*", arg) else ""
        return replaced

    def _replace_in_argument(self, server: str, flag: str, arg: str, used_by: str) -> str:
        if flag and not arg.startswith("-") and is_secret_key(flag):
            words = (server, flag)
            return self._replace_if_secret(server, flag, arg, used_by, words, words)
        header = _HEADER.fullmatch(arg)
        if header is not None:
            value = self.header(server, header["key"], header["value"])
            return f"{header['key']}:{header['gap']}{value}"
        option = _OPTION.fullmatch(arg)
        if option is not None:
            key, value = option["key"], option["value"]
            short_words = (server, key) if key.startswith("-") else (key,)
            replaced = self._replace_if_secret(
                server, key, value, used_by, short_words, (server, key)
            )
            return f"{key}={replaced}"
        words = (server, "secret")
        return self._replace_if_secret(server, "", arg, used_by, words, words)

    def _replace_if_secret(
        self,
        server: str,
        key: str,
        value: str,
        used_by: str,
        short_words: tuple[str, ...],
        long_words: tuple[str, ...],
    ) -> str:
        if not _is_literal(value):
            return self._replace_around_references(key, value, used_by, long_words)
        if value.lower() in _HARMLESS:
            return value
        is_path = _PATH_NAME.search(key) and _PATH_VALUE.match(value)
        if is_secret_value(value) or (is_secret_key(key) and not is_path):
            return self._replace(value, used_by, short_words, long_words)
        return value

    def _replace_around_references(
        self, key: str, value: str, used_by: str, words: tuple[str, ...]
    ) -> str:
        """Replace secret defaults and known tokens in a value that already has references."""
        result = ""
        for piece in pieces(value):
            if isinstance(piece, str):
                secret = is_secret_value(piece)
                result += self._replace(piece, used_by, words, words) if secret else escape(piece)
            elif isinstance(piece, EnvReference) and (piece.default or "").lower() not in _HARMLESS:
                named = is_secret_key(key) or is_secret_key(piece.name)
                if named or is_secret_value(piece.default or ""):
                    piece = EnvReference(self.add_variable(piece.name, used_by), None)
                result += str(piece)
            else:
                result += str(piece)
        return result

    def _replace(
        self, value: str, used_by: str, short_words: tuple[str, ...], long_words: tuple[str, ...]
    ) -> str:
        scheme = _SCHEME.match(value)
        secret = value[scheme.end() :] if scheme else value
        name = self._name(secret, variable_name(*short_words), variable_name(*long_words))
        self._values[name] = secret
        self.variables.setdefault(name, Variable(name, used_by))
        return f"{scheme[0] if scheme else ''}${{env:{name}}}"

    def _name(self, secret: str, short_words: str, long_words: str) -> str:
        """Return the first name that is free or already belongs to the secret."""
        for name in chain((short_words, long_words), (f"{long_words}_{n}" for n in count(2))):
            if self._values.get(name, secret) == secret:
                return name
        raise AssertionError("count() never ends")


def _is_literal(value: str) -> bool:
    try:
        return not references(value)
    except InvalidValueError:
        return True
