"""References to secrets: finding them in text, and resolving them when the text is used.

A loaded config holds references only. `resolve` reads the environment it is given and the files
that are named; what it returns goes to an upstream and is never kept, logged or shown. An error
names the variable or the path, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from interlock.core.config.model import ServerConfig, TlsConfig
from interlock.core.config.problems import BadValue, ConfigError
from interlock.core.config.section import Section
from interlock.core.config.trust import TokenConfig

MAX_SECRET_BYTES: Final = 1024 * 1024
_SHORTEST_SECRET: Final = 8

OAUTH_REFERENCES: Final = (
    "issuer", "client_id", "client_secret", "private_key", "client_metadata_url",
)  # fmt: skip
"""The fields of `oauth` in which references stand."""
TLS_FILES: Final = ("certificate", "key", "client_ca")

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<body>[^}]*)(?P<end>\}?)")
_ENV: Final = re.compile(r"env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_FORMS: Final = "write ${env:NAME}, ${env:NAME:-default} or ${file:path}, and $${ for a literal ${"


class EnvReference(NamedTuple):
    """`${env:NAME}` or `${env:NAME:-default}`."""

    name: str
    default: str | None

    def __str__(self) -> str:
        tail = "" if self.default is None else f":-{self.default}"
        return f"${{env:{self.name}{tail}}}"


class FileReference(NamedTuple):
    """`${file:path}`."""

    path: str

    def __str__(self) -> str:
        return f"${{file:{self.path}}}"


Piece = str | EnvReference | FileReference


def pieces(text: str) -> Iterator[Piece]:
    """The text in order: literal parts and references. `$${` is a literal `${`.

    Raises BadValue for a reference that cannot be understood.
    """
    start = 0
    for match in _REFERENCE.finditer(text):
        if match.start() > start:
            yield text[start : match.start()]
        start = match.end()
        body = match["body"]
        yield "${" if body is None else _reference(body, closed=bool(match["end"]))
    if start < len(text):
        yield text[start:]


def _reference(body: str, *, closed: bool) -> EnvReference | FileReference:
    if not closed:
        raise BadValue("a reference is not closed with }", _FORMS)
    if "${" in body:
        raise BadValue("a reference cannot stand inside another", _FORMS)
    env = _ENV.fullmatch(body)
    if env is not None:
        default = env["default"]
        return EnvReference(env["name"], None if default is None else default[2:])
    if body.startswith("file:") and body[5:].strip():
        return FileReference(body[5:])
    if _VARIABLE.fullmatch(body):
        raise BadValue(f"${{{body}}} is not a reference", f"write ${{env:{body}}}")
    raise BadValue("${…} holds no reference", _FORMS)


def references(text: str) -> list[EnvReference | FileReference]:
    """The references in the text. Raises BadValue for one that cannot be understood."""
    return [piece for piece in pieces(text) if not isinstance(piece, str)]


def escape(text: str) -> str:
    """Text that resolves to exactly `text`, whatever stands in it."""
    return text.replace("${", "$${")


def resolve(text: str, *, environ: Mapping[str, str], base_dir: Path) -> str:
    """The text with every reference replaced. Raises ConfigError when one leads nowhere."""
    if "${" not in text:
        return text
    resolved = []
    try:
        for piece in pieces(text):
            if isinstance(piece, EnvReference):
                resolved.append(_from_environment(piece, environ))
            elif isinstance(piece, FileReference):
                resolved.append(_from_file(piece, environ, base_dir))
            else:
                resolved.append(piece)
    except BadValue as bad:
        raise ConfigError.of(bad.message, bad.hint) from None
    return "".join(resolved)


def secret_digests(
    config: msgspec.Struct, *, environ: Mapping[str, str], base_dir: Path
) -> frozenset[bytes]:
    """SHA-256 of each secret that the config refers to: enough to recognize one, and nothing is
    kept of it. Short values and paths are no secrets: `true`, `/home/me`."""
    found: set[bytes] = set()
    for text in _texts(msgspec.to_builtins(config, enc_hook=str)):
        for reference in references(text) if "${" in text else ():
            if isinstance(reference, EnvReference) and reference.name not in environ:
                continue
            try:
                value = resolve(str(reference), environ=environ, base_dir=base_dir)
            except ConfigError:
                continue
            if len(value) >= _SHORTEST_SECRET and not value.startswith(("/", "~", ".")):
                found.add(digest_of_secret(value))
    return frozenset(found)


def digest_of_secret(value: str) -> bytes:
    return sha256(value.encode("utf-8", "surrogatepass")).digest()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)


SAME_TOKEN_HINT: Final = "give each a token of its own: openssl rand -hex 24"


def same_token(other: str) -> str:
    """What is wrong where `other` has the same token."""
    return f"it is the same token as that of {other}: nobody can tell these callers apart"


def resolve_tokens(
    tokens: Iterable[TokenConfig], *, environ: Mapping[str, str], base_dir: Path
) -> dict[str, TokenConfig]:
    """Who has which secret. Raises ConfigError, also where two have the same: whoever shows it
    would be taken for the one who may do more."""
    known: dict[str, TokenConfig] = {}
    for one in tokens:
        other = known.setdefault(resolve(one.token, environ=environ, base_dir=base_dir), one)
        if other is not one:
            raise ConfigError.of(f"`tokens`, {one.name}: {same_token(other.name)}", SAME_TOKEN_HINT)
    return known


def resolve_server(
    server: ServerConfig, *, environ: Mapping[str, str], base_dir: Path
) -> ServerConfig:
    """The server as its link needs it: every reference resolved, `cwd` absolute."""

    def whole(text: str) -> str:
        return resolve(text, environ=environ, base_dir=base_dir)

    def maybe(text: str | None) -> str | None:
        return None if text is None else whole(text)

    oauth = server.oauth
    cwd = maybe(server.cwd)
    return replace(
        server,
        url=maybe(server.url),
        command=maybe(server.command),
        args=[whole(arg) for arg in server.args],
        env={name: whole(value) for name, value in server.env.items()},
        headers={name: whole(value) for name, value in server.headers.items()},
        cwd=None if cwd is None else str(_located(cwd, environ, base_dir)),
        oauth=replace(oauth, **{name: maybe(getattr(oauth, name)) for name in OAUTH_REFERENCES}),
    )


def resolve_tls(tls: TlsConfig, *, environ: Mapping[str, str], base_dir: Path) -> TlsConfig:
    """The listener's TLS with every file absolute and there. Raises ConfigError."""
    return replace(tls, **resolve_files(tls, TLS_FILES, environ, base_dir))


def resolve_files(
    section: Section,
    names: tuple[str, ...],
    environ: Mapping[str, str],
    base_dir: Path,
) -> dict[str, str]:
    """The files that a section names, by field, as absolute paths. Raises ConfigError."""
    found: dict[str, str] = {}
    for name in names:
        path = getattr(section, name)
        if path is not None:
            problem = missing_file(path, environ=environ, base_dir=base_dir)
            if problem is not None:
                raise ConfigError.of(*problem)
            found[name] = str(_located(path, environ, base_dir))
    return found


def missing_file(
    path: str, *, environ: Mapping[str, str], base_dir: Path
) -> tuple[str, str] | None:
    """What is wrong with a file that the config names, and what to do; None: it can be read."""
    try:
        with _located(path, environ, base_dir).open("rb"):
            return None
    except FileNotFoundError:
        return (
            f"the file {path} does not exist",
            "create it, or correct the path (it starts at the config file's folder)",
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        return (
            f"the file {path} cannot be read ({reason.lower()})",
            "make it readable for this user",
        )


def _located(path: str, environ: Mapping[str, str], base_dir: Path) -> Path:
    """`~` is the home folder; a relative path starts at the config file's folder."""
    if path == "~" or path.startswith("~/"):
        return Path(environ.get("HOME") or Path.home(), path[2:])
    return base_dir / path


def _from_environment(reference: EnvReference, environ: Mapping[str, str]) -> str:
    value = environ.get(reference.name)
    if value is None and reference.default is None:
        raise ConfigError.of(
            f"the environment variable {reference.name} is not set",
            "set it before the node starts",
        )
    # As in a shell, `:-` also stands in for a variable that is empty.
    return value or reference.default or ""


def _from_file(reference: FileReference, environ: Mapping[str, str], base_dir: Path) -> str:
    shown = f"the secret file {reference.path}"
    try:
        with _located(reference.path, environ, base_dir).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError.of(
            f"{shown} does not exist",
            "create it, or correct the path (it starts at the config file's folder)",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise ConfigError.of(
            f"{shown} cannot be read ({reason.lower()})", "make it readable for this user"
        ) from None
    if len(content) > MAX_SECRET_BYTES:
        raise ConfigError.of(f"{shown} is larger than 1 MiB", "name the file that holds the secret")
    try:
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError.of(f"{shown} is not UTF-8 text", "store the secret as text") from None
