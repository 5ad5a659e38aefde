"""Redaction of secrets in text: references are shown unchanged, literal secrets are masked.

Pure. Every config, server, header or line of an upstream passes this module before it is printed.
In doubt it masks: a hidden flag does less harm than a printed key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec.structs import replace

from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import InvalidValueError
from interlock.core.config.secrets import EnvReference, pieces
from interlock.primitives.text import format_count

MASK: Final = "***"

_SECRET_WORD: Final = re.compile(
    "token|key|secret|password|passwd|passphrase|pwd|credential|authorization|cookie|bearer"
    "|connectionstring"
)
# Too short to search inside other words (COMPASS, PATH, AUTHOR): matched as the last word only.
_SECRET_LAST_WORDS: Final = frozenset(
    {"pass", "auth", "dsn", "pat", "creds", "jwt", "session", "pgpass", "sid"}
)
_LAST_WORD: Final = re.compile(
    r"(?:[A-Z]?[a-z]+|[A-Z]+)(?=(?:[_.\s-]*(?:[0-9]+|[iI][dD]))?[^A-Za-z0-9]*$)"
)
# A known prefix means a secret, for any key. Text that begins like a signed token (JWT) is one if
# two dots follow. They are searched once for all candidates before the first dot.
_SECRET_VALUE: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}"
    r"|ilk_[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|(?P<signed>eyJ))"
)
_BEFORE_DOT: Final = re.compile(r"[A-Za-z0-9_-]*")
_AFTER_DOT: Final = re.compile(r"\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*")
_MIN_SIGNED_LENGTH: Final = len("eyJ") + 8
_SCHEME: Final = re.compile(r"^\s*(?:Bearer|Basic|Token|Digest)\s+", re.IGNORECASE)
# The end of a reference is searched separately: `${a${a…` would be read to its end repeatedly.
_REFERENCE_OR_KEY: Final = re.compile(
    r"\$\{|(?<![\w.-])(?P<key>[\w.-]+)(?P<gap>[\"']?\s{0,4}[:=]\s{0,4})"
)
_REFERENCE_END: Final = re.compile(r"[}\n]")
# Separate from the key, and searched after keys of secrets only: `a:a:a:…` would be read to its end
# at every colon.
_VALUE: Final = re.compile(
    r"\"[^\"\n]*\"|'[^'\n]*'|(?:(?:Bearer|Basic|Token|Digest)\s{1,4})?[^\s,;&\"']+", re.IGNORECASE
)
_MAX_LAST_WORD: Final = 100
# The beginning of a sentence, but not of a secret: whole words after a colon and a space, before
# another word. `server.env.API_KEY: the secret API_KEY is not listed` stays readable.
_SENTENCE: Final = re.compile(
    r"(?:the|a|an|it|is|are|was|no|not|this|that|there|cannot|must|may|has|needs)[ \t]+[A-Za-z]",
    re.IGNORECASE,
)
# Keys that always mean a secret, and values that consist of a secret only: one word in a shell.
_ONLY_SECRET_KEY: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|authorization|bearer"
    r"|(?:api|access|secret|private|signing|encryption)[_.-]?key)$",
    re.IGNORECASE,
)
_WORD: Final = r"[\w+=.~!@%^*#?-](?:[\w+=.~!@%^*#?/-]|:(?!/))*+"
_ONLY_SECRET: Final = re.compile(
    rf"\"{_WORD}\"|'{_WORD}'|(?:(?:Bearer|Basic|Token|Digest)\s{{1,4}}+)?+{_WORD}", re.IGNORECASE
)
_VALUE_END: Final = re.compile(r"[\s,;&\"']|$")
_FLAG: Final = re.compile(r"(?<!\S)(?P<flag>--?[\w-]+)(?P<gap>\s{1,4})(?P<value>[^\s-]\S*)")
_USERINFO: Final = re.compile(r"(?<=://)(?P<user>[^\s/?#@:]*):(?P<password>[^\s/?#@]+)@")


def is_secret_key(key: str) -> bool:
    """Return whether a header, variable or option of this name usually contains a secret."""
    lowered = key.lower().replace("_", "").replace("-", "")
    if _SECRET_WORD.search(lowered):
        return True
    last = _LAST_WORD.search(key[-_MAX_LAST_WORD:])
    return last is not None and last[0].lower() in _SECRET_LAST_WORDS


def is_secret_value(value: str) -> bool:
    """Return whether a value looks like a secret: a known token format, or a password in a URL."""
    return bool(next(_secret_values(value), None) or _USERINFO.search(value))


def mask(value: str) -> str:
    """Mask a secret value. References and the authentication scheme stay visible."""
    try:
        parts = list(pieces(value))
    except InvalidValueError:
        return MASK
    masked = ""
    for index, part in enumerate(parts):
        if isinstance(part, EnvReference) and part.default:
            masked += str(part._replace(default=MASK))
        elif not isinstance(part, str):
            masked += str(part)
        elif part.strip():
            scheme = _SCHEME.match(part) if index == 0 else None
            rest = part[scheme.end() :] if scheme else part
            masked += (scheme[0] if scheme else "") + (MASK if rest.strip() else rest)
        else:
            masked += part
    return masked


def redact_pair(key: str, value: str) -> str:
    """Return the value of a header or variable, safe to print."""
    return mask(value) if is_secret_key(key) else redact(value)


def redact(text: str) -> str:
    """Mask secrets in free text: values of secret keys, known token formats, URL passwords."""
    return _redact_text(text, mask_all=True)


def redact_secrets_only(text: str) -> str:
    """Mask secrets, but keep text that a reader must see to know what it does.

    After a key, only a value that consists of a secret is masked, and only if the key always means
    a secret. Commands and values such as `key = 5` stay visible.
    """
    return _redact_text(text, mask_all=False)


def _redact_text(text: str, *, mask_all: bool) -> str:
    text = _USERINFO.sub(lambda m: f"{m['user']}:{mask(m['password'])}@", text)
    text = _redact_assignments(text, mask_all=mask_all)
    text = _FLAG.sub(lambda match: _redact_flag(match, mask_all=mask_all), text)
    return _redact_values(text)


def redact_value(value: Any, secret: bool = False) -> Any:
    """Return a copy of decoded JSON without secrets, for logs and records. Not for approvals:
    people must see what they approve.

    Args:
        value: decoded JSON.
        secret: True if its key usually contains a secret.
    """
    if isinstance(value, dict):
        return {
            name: redact_value(member, secret or is_secret_key(name))
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [redact_value(item, secret) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if secret:
        return hidden_text(len(value) if isinstance(value, str) else len(json.dumps(value)))
    if isinstance(value, str):
        redacted = redact_secrets_only(value)
        if redacted != value:
            length = len(value) - len(redacted.replace(MASK, ""))
            if redacted == MASK:
                return hidden_text(length)
            return f"{redacted} (hidden: {_characters(length)})"
    return value


def hidden_text(length: int) -> str:
    """Return the replacement text for a secret of this length."""
    return f"{MASK} (hidden: a secret of {_characters(length)})"


def _characters(length: int) -> str:
    return format_count(length, "character")


def redact_about(name: str, sentence: str) -> str:
    """Mask secrets in a message about an upstream.

    The name of the upstream is not treated as a key, even if it looks like one. Only the text after
    it may contain a secret of the upstream.
    """
    prefix = re.match(rf"(?:Cannot (?:start|connect to) )?{re.escape(name)}: ", sentence)
    start = prefix.end() if prefix is not None else 0
    return sentence[:start] + redact(sentence[start:])


def redact_args(args: list[str]) -> list[str]:
    """Mask secrets in arguments: `--token x`, `--token=x` and `Authorization: x`."""
    redacted = []
    for position, arg in enumerate(args):
        previous = args[position - 1] if position else ""
        follows_flag = previous.startswith("-") and "=" not in previous and is_secret_key(previous)
        if follows_flag and not arg.startswith("-"):
            redacted.append(mask(arg))
        else:
            redacted.append(redact(arg))
    return redacted


def redact_server(server: ServerConfig) -> ServerConfig:
    """Return a copy of a server config with masked secrets, for output only."""
    return replace(
        server,
        url=None if server.url is None else redact(server.url),
        args=redact_args(server.args),
        env={name: redact_pair(name, value) for name, value in server.env.items()},
        headers={name: redact_pair(name, value) for name, value in server.headers.items()},
    )


def _secret_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each secret in a known format."""
    position = dot = -1
    signed: re.Match[str] | None = None
    while match := _SECRET_VALUE.search(text, max(position, 0)):
        start, position = match.span()
        if match["signed"] is not None:
            if start >= dot:
                dot = cast("re.Match[str]", _BEFORE_DOT.match(text, start)).end()
                signed = _AFTER_DOT.match(text, dot)
            if signed is None or dot - start < _MIN_SIGNED_LENGTH:
                continue
            position = signed.end()
        yield start, position


def _redact_values(text: str) -> str:
    redacted: list[str] = []
    position = 0
    for start, end in _secret_values(text):
        redacted += (text[position:start], MASK)
        position = end
    return "".join(redacted) + text[position:]


def _redact_assignments(text: str, *, mask_all: bool) -> str:
    """Mask `key: value` and `key=value`. The text after a harmless key is searched again, since it
    may be a key too: `header: Authorization: …`."""
    redacted: list[str] = []
    position = closes = checked_until = 0
    while match := _REFERENCE_OR_KEY.search(text, position):
        end = match.end()
        key = match["key"]
        value = None
        if key is None:
            if closes < end:
                closing = _REFERENCE_END.search(text, end)
                closes = len(text) if closing is None else closing.start()
            if text.startswith("}", closes):
                end = closes + 1
        elif is_secret_key(key) and not _is_followed_by_sentence(match):
            if mask_all:
                value = _VALUE.match(text, end)
            elif end >= checked_until and _ONLY_SECRET_KEY.search(key):
                value = _ONLY_SECRET.match(text, end)
                if value is not None and not _VALUE_END.match(text, value.end()):
                    # No value that begins before its end consists of a secret only.
                    checked_until, value = value.end(), None
        redacted.append(text[position:end])
        if value is not None:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            inner = value[0][1:-1] if quote else value[0]
            redacted.append(f"{quote}{mask(inner)}{quote}")
            end = value.end()
        position = end
    return "".join(redacted) + text[position:]


def _is_followed_by_sentence(match: re.Match[str]) -> bool:
    """Return whether a sentence about a key follows, and not its value."""
    return match["gap"] == ": " and bool(_SENTENCE.match(match.string, match.end()))


def _redact_flag(match: re.Match[str], *, mask_all: bool) -> str:
    flag, value = match["flag"], match["value"]
    if not is_secret_key(flag):
        return match[0]
    if not mask_all and not (_ONLY_SECRET_KEY.search(flag) and _ONLY_SECRET.fullmatch(value)):
        return match[0]
    return f"{flag}{match['gap']}{mask(value)}"
