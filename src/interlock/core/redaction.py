"""Making text safe to print: references are shown as they stand, literal secrets are masked.

Pure. Whoever prints a config, a server, a header or a line that an upstream wrote passes it
through here. When in doubt it masks: a hidden flag costs less than a shown key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, cast

from msgspec.structs import replace

from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import BadValue
from interlock.core.config.secrets import EnvReference, pieces
from interlock.primitives.text import format_count

MASK: Final = "***"

_SECRET_WORD: Final = re.compile(
    "token|key|secret|password|passwd|passphrase|pwd|credential|authorization|cookie|bearer"
    "|connectionstring"
)
# Too short to be looked for inside other words (COMPASS, PATH, AUTHOR): only as the last word.
_SECRET_LAST_WORDS: Final = frozenset(
    {"pass", "auth", "dsn", "pat", "creds", "jwt", "session", "pgpass", "sid"}
)
_LAST_WORD: Final = re.compile(
    r"(?:[A-Z]?[a-z]+|[A-Z]+)(?=(?:[_.\s-]*(?:[0-9]+|[iI][dD]))?[^A-Za-z0-9]*$)"
)
# A known start means a secret, whatever the key is called. What begins like a signed token is one
# where two dots follow, which is looked for once for all that begin before the first of them.
_SECRET_VALUE: Final = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}"
    r"|ilk_[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|(?P<signed>eyJ))"
)
_UP_TO_DOT: Final = re.compile(r"[A-Za-z0-9_-]*")
_BEHIND_DOT: Final = re.compile(r"\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*")
_SHORTEST_SIGNED: Final = len("eyJ") + 8
_SCHEME: Final = re.compile(r"^\s*(?:Bearer|Basic|Token|Digest)\s+", re.IGNORECASE)
# Where a reference ends is looked for apart: `${a${a…` would be read to its end at every one.
_REFERENCE_OR_KEY: Final = re.compile(
    r"\$\{|(?<![\w.-])(?P<key>[\w.-]+)(?P<gap>[\"']?\s{0,4}[:=]\s{0,4})"
)
_REFERENCE_END: Final = re.compile(r"[}\n]")
# Apart from its key, and looked for behind those of secrets alone: `a:a:a:…` would be read to its
# end at every colon.
_VALUE: Final = re.compile(
    r"\"[^\"\n]*\"|'[^'\n]*'|(?:(?:Bearer|Basic|Token|Digest)\s{1,4})?[^\s,;&\"']+", re.IGNORECASE
)
_LONGEST_LAST_WORD: Final = 100
# How a sentence begins, and no secret does: only whole words, after a colon and a space, before
# another word. `server.env.API_KEY: the secret API_KEY is not listed` stays readable.
_SENTENCE: Final = re.compile(
    r"(?:the|a|an|it|is|are|was|no|not|this|that|there|cannot|must|may|has|needs)[ \t]+[A-Za-z]",
    re.IGNORECASE,
)
# What nobody means but a secret, and what is nothing but one: a shell makes one word of it.
_ONLY_SECRET_KEY: Final = re.compile(
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|authorization|bearer"
    r"|(?:api|access|secret|private|signing|encryption)[_.-]?key)$",
    re.IGNORECASE,
)
_WORD: Final = r"[\w+=.~!@%^*#?-](?:[\w+=.~!@%^*#?/-]|:(?!/))*+"
_ONLY_SECRET: Final = re.compile(
    rf"\"{_WORD}\"|'{_WORD}'|(?:(?:Bearer|Basic|Token|Digest)\s{{1,4}}+)?+{_WORD}", re.IGNORECASE
)
_ENDS: Final = re.compile(r"[\s,;&\"']|$")
_FLAG: Final = re.compile(r"(?<!\S)(?P<flag>--?[\w-]+)(?P<gap>\s{1,4})(?P<value>[^\s-]\S*)")
_USERINFO: Final = re.compile(r"(?<=://)(?P<user>[^\s/?#@:]*):(?P<password>[^\s/?#@]+)@")


def is_secret_key(key: str) -> bool:
    """Whether a header, variable or option of this name usually holds a secret."""
    lowered = key.lower().replace("_", "").replace("-", "")
    if _SECRET_WORD.search(lowered):
        return True
    last = _LAST_WORD.search(key[-_LONGEST_LAST_WORD:])
    return last is not None and last[0].lower() in _SECRET_LAST_WORDS


def is_secret_value(value: str) -> bool:
    """Whether the value itself looks like a secret: a known token form, a password in a URL."""
    return bool(next(_secret_values(value), None) or _USERINFO.search(value))


def mask(value: str) -> str:
    """A secret value for print: its references and its scheme stay, every literal part goes."""
    try:
        parts = list(pieces(value))
    except BadValue:
        return MASK
    shown = ""
    for index, part in enumerate(parts):
        if isinstance(part, EnvReference) and part.default:
            shown += str(part._replace(default=MASK))
        elif not isinstance(part, str):
            shown += str(part)
        elif part.strip():
            scheme = _SCHEME.match(part) if index == 0 else None
            rest = part[scheme.end() :] if scheme else part
            shown += (scheme[0] if scheme else "") + (MASK if rest.strip() else rest)
        else:
            shown += part
    return shown


def redact_pair(key: str, value: str) -> str:
    """The value of a header or variable, safe to print."""
    return mask(value) if is_secret_key(key) else redact(value)


def redact(text: str) -> str:
    """Free text, safe to print: values of suspicious keys, known token forms, URL passwords."""
    return _redacted(text, whole=True)


def redact_secrets_only(text: str) -> str:
    """The same for whoever must see what the text does: behind a key only what is nothing but a
    secret, where that is what the key means. Nothing that a shell would run, no `key = 5`."""
    return _redacted(text, whole=False)


def _redacted(text: str, *, whole: bool) -> str:
    text = _USERINFO.sub(lambda m: f"{m['user']}:{mask(m['password'])}@", text)
    text = _redact_assignments(text, whole=whole)
    text = _FLAG.sub(lambda match: _redact_flag(match, whole=whole), text)
    return _redact_values(text)


def redact_value(value: Any, secret: bool = False) -> Any:
    """A copy of decoded JSON for logs and records: what a secret's name or form gives away is not
    in it. Not for approvals: people must see what they approve.

    Args:
        value: decoded JSON.
        secret: whether it belongs to a key that usually holds a secret.
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
        shown = redact_secrets_only(value)
        if shown != value:
            length = len(value) - len(shown.replace(MASK, ""))
            return (
                hidden_text(length) if shown == MASK else f"{shown} (hidden: {_characters(length)})"
            )
    return value


def hidden_text(length: int) -> str:
    """What stands for a secret of this length."""
    return f"{MASK} (hidden: a secret of {_characters(length)})"


def _characters(length: int) -> str:
    return format_count(length, "character")


def redact_about(name: str, sentence: str) -> str:
    """What a node says of the upstream called `name`, safe to print.

    The name itself is no key, even when it looks like one: only what follows it may be a secret
    that the upstream let slip.
    """
    own = re.match(rf"(?:Cannot (?:start|connect to) )?{re.escape(name)}: ", sentence)
    start = own.end() if own is not None else 0
    return sentence[:start] + redact(sentence[start:])


def redact_args(args: list[str]) -> list[str]:
    """Arguments, safe to print: `--token x`, `--token=x` and `Authorization: x` are masked."""
    shown = []
    for position, arg in enumerate(args):
        previous = args[position - 1] if position else ""
        follows_flag = previous.startswith("-") and "=" not in previous and is_secret_key(previous)
        if follows_flag and not arg.startswith("-"):
            shown.append(mask(arg))
        else:
            shown.append(redact(arg))
    return shown


def redact_server(server: ServerConfig) -> ServerConfig:
    """The server for print. Not for use: masked values do not come back."""
    return replace(
        server,
        url=None if server.url is None else redact(server.url),
        args=redact_args(server.args),
        env={name: redact_pair(name, value) for name, value in server.env.items()},
        headers={name: redact_pair(name, value) for name, value in server.headers.items()},
    )


def _secret_values(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets of a known form begin and end."""
    position = dot = -1
    signed: re.Match[str] | None = None
    while match := _SECRET_VALUE.search(text, max(position, 0)):
        start, position = match.span()
        if match["signed"] is not None:
            if start >= dot:
                dot = cast("re.Match[str]", _UP_TO_DOT.match(text, start)).end()
                signed = _BEHIND_DOT.match(text, dot)
            if signed is None or dot - start < _SHORTEST_SIGNED:
                continue
            position = signed.end()
        yield start, position


def _redact_values(text: str) -> str:
    shown: list[str] = []
    position = 0
    for start, end in _secret_values(text):
        shown += (text[position:start], MASK)
        position = end
    return "".join(shown) + text[position:]


def _redact_assignments(text: str, *, whole: bool) -> str:
    """Mask `key: value` and `key=value`. What follows a harmless key is looked at again, since
    it may be a key itself: `header: Authorization: …`."""
    shown: list[str] = []
    position = closes = odd = 0
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
        elif is_secret_key(key) and not _is_said_of(match):
            if whole:
                value = _VALUE.match(text, end)
            elif end >= odd and _ONLY_SECRET_KEY.search(key):
                value = _ONLY_SECRET.match(text, end)
                if value is not None and not _ENDS.match(text, value.end()):
                    # What begins up to there is not only a secret either.
                    odd, value = value.end(), None
        shown.append(text[position:end])
        if value is not None:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            inner = value[0][1:-1] if quote else value[0]
            shown.append(f"{quote}{mask(inner)}{quote}")
            end = value.end()
        position = end
    return "".join(shown) + text[position:]


def _is_said_of(match: re.Match[str]) -> bool:
    """Whether what follows a key is a sentence about it, and not its value."""
    return match["gap"] == ": " and bool(_SENTENCE.match(match.string, match.end()))


def _redact_flag(match: re.Match[str], *, whole: bool) -> str:
    flag, value = match["flag"], match["value"]
    if not is_secret_key(flag):
        return match[0]
    if not whole and not (_ONLY_SECRET_KEY.search(flag) and _ONLY_SECRET.fullmatch(value)):
        return match[0]
    return f"{flag}{match['gap']}{mask(value)}"
