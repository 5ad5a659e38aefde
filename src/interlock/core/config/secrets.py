"""References to secrets: finding them in text, and resolving them when the text is used.

A loaded config only contains references. `resolve` reads the given environment and the named files.
Its result goes to an upstream and is never stored, logged or shown. An error names the variable or
the path, never a value.
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
from interlock.core.config.problems import ConfigError, InvalidValueError
from interlock.core.config.section import Section
from interlock.core.config.trust import TokenConfig

MAX_SECRET_BYTES: Final = 1024 * 1024
_MIN_SECRET_LENGTH: Final = 8

OAUTH_REFERENCES: Final = (
    "issuer", "client_id", "client_secret", "private_key", "client_metadata_url",
)  # fmt: skip
"""The fields of `oauth` that may contain references."""
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
    """Yield literal parts and references of a text in order. `$${` is a literal `${`.

    Raises:
        InvalidValueError: a reference is invalid.
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
        raise InvalidValueError("a reference is not closed with }", _FORMS)
    if "${" in body:
        raise InvalidValueError("a reference cannot contain another reference", _FORMS)
    env = _ENV.fullmatch(body)
    if env is not None:
        default = env["default"]
        return EnvReference(env["name"], None if default is None else default[2:])
    if body.startswith("file:") and body[5:].strip():
        return FileReference(body[5:])
    if _VARIABLE.fullmatch(body):
        raise InvalidValueError(f"${{{body}}} is not a reference", f"write ${{env:{body}}}")
    raise InvalidValueError("${…} contains no reference", _FORMS)


def references(text: str) -> list[EnvReference | FileReference]:
    """Return the references in a text. Raises InvalidValueError for an invalid reference."""
    return [piece for piece in pieces(text) if not isinstance(piece, str)]


def escape(text: str) -> str:
    """Return a text that resolves to exactly `text`."""
    return text.replace("${", "$${")


def resolve(text: str, *, environ: Mapping[str, str], base_dir: Path) -> str:
    """Replace all references in a text. Raises ConfigError if a variable or file is missing."""
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
    except InvalidValueError as bad:
        raise ConfigError.of(bad.message, bad.hint) from None
    return "".join(resolved)


def secret_digests(
    config: msgspec.Struct, *, environ: Mapping[str, str], base_dir: Path
) -> frozenset[bytes]:
    """Return the SHA-256 of each secret that the config refers to, to recognize secrets without
    storing them. Short values and paths, such as `true` and `/home/me`, are not secrets."""
    digests: set[bytes] = set()
    for text in _texts(msgspec.to_builtins(config, enc_hook=str)):
        for reference in references(text) if "${" in text else ():
            if isinstance(reference, EnvReference) and reference.name not in environ:
                continue
            try:
                value = resolve(str(reference), environ=environ, base_dir=base_dir)
            except ConfigError:
                continue
            if len(value) >= _MIN_SECRET_LENGTH and not value.startswith(("/", "~", ".")):
                digests.add(digest_of_secret(value))
    return frozenset(digests)


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
    """Return the message for a token that `other` has, too."""
    return f"it is the same token as that of {other}: these callers cannot be distinguished"


def resolve_tokens(
    tokens: Iterable[TokenConfig], *, environ: Mapping[str, str], base_dir: Path
) -> dict[str, TokenConfig]:
    """Return tokens by their secret. Raises ConfigError if two have the same secret, because their
    callers could not be distinguished."""
    tokens_by_secret: dict[str, TokenConfig] = {}
    for token in tokens:
        first_owner = tokens_by_secret.setdefault(
            resolve(token.token, environ=environ, base_dir=base_dir), token
        )
        if first_owner is not token:
            raise ConfigError.of(
                f"`tokens`, {token.name}: {same_token(first_owner.name)}", SAME_TOKEN_HINT
            )
    return tokens_by_secret


def resolve_server(
    server: ServerConfig, *, environ: Mapping[str, str], base_dir: Path
) -> ServerConfig:
    """Return the server as its transport needs it: references resolved, `cwd` absolute."""

    def resolve_text(text: str) -> str:
        return resolve(text, environ=environ, base_dir=base_dir)

    def resolve_optional(text: str | None) -> str | None:
        return None if text is None else resolve_text(text)

    oauth = server.oauth
    cwd = resolve_optional(server.cwd)
    return replace(
        server,
        url=resolve_optional(server.url),
        command=resolve_optional(server.command),
        args=[resolve_text(arg) for arg in server.args],
        env={name: resolve_text(value) for name, value in server.env.items()},
        headers={name: resolve_text(value) for name, value in server.headers.items()},
        cwd=None if cwd is None else str(_to_path(cwd, environ, base_dir)),
        oauth=replace(
            oauth, **{name: resolve_optional(getattr(oauth, name)) for name in OAUTH_REFERENCES}
        ),
    )


def resolve_tls(tls: TlsConfig, *, environ: Mapping[str, str], base_dir: Path) -> TlsConfig:
    """Return TLS settings with absolute paths of existing files. Raises ConfigError."""
    return replace(tls, **resolve_files(tls, TLS_FILES, environ, base_dir))


def resolve_files(
    section: Section,
    names: tuple[str, ...],
    environ: Mapping[str, str],
    base_dir: Path,
) -> dict[str, str]:
    """Return the absolute paths of files that a section names, by field. Raises ConfigError."""
    paths: dict[str, str] = {}
    for name in names:
        path = getattr(section, name)
        if path is not None:
            problem = missing_file(path, environ=environ, base_dir=base_dir)
            if problem is not None:
                raise ConfigError.of(*problem)
            paths[name] = str(_to_path(path, environ, base_dir))
    return paths


def missing_file(
    path: str, *, environ: Mapping[str, str], base_dir: Path
) -> tuple[str, str] | None:
    """Return the problem of a file that the config names, and a hint. None: it can be read."""
    try:
        with _to_path(path, environ, base_dir).open("rb"):
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


def _to_path(path: str, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return a path: `~` is the home folder, relative paths start at the folder of the config."""
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
    # As in a shell, `:-` also replaces an empty variable.
    return value or reference.default or ""


def _from_file(reference: FileReference, environ: Mapping[str, str], base_dir: Path) -> str:
    label = f"the secret file {reference.path}"
    try:
        with _to_path(reference.path, environ, base_dir).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError.of(
            f"{label} does not exist",
            "create it, or correct the path (it starts at the config file's folder)",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "bad path"
        raise ConfigError.of(
            f"{label} cannot be read ({reason.lower()})", "make it readable for this user"
        ) from None
    if len(content) > MAX_SECRET_BYTES:
        raise ConfigError.of(f"{label} is larger than 1 MiB", "name the file with the secret")
    try:
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError.of(f"{label} is not UTF-8 text", "store the secret as text") from None
