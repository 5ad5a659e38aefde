"""What somebody else wrote, as a sentence of AQL quotes it: the same text, short and on one line.

Whatever a reader could not see, or could take for the end of the quotation, stands as JSON escapes
it, so that two different texts never look the same, and a quotation can be read back. So does what
the public conformance runner would take for a line of a stack trace.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, Final

LONGEST: Final = 60
"""Characters of a name or a value, unless said otherwise."""

UNLAWFUL: Final = re.compile(
    r"at\s+\S+|typeerror|referenceerror|syntaxerror|/src/|/node_modules/|\.[tj]s:\d", re.IGNORECASE
)
"""What must not be in a message. No word boundary: "format x" is caught, too."""


def lawful(message: str) -> bool:
    """Whether no part of a message could be taken for a stack trace."""
    return UNLAWFUL.search(message) is None


def short(name: str, most: int = LONGEST) -> str:
    """A name that somebody sent, as details give it back."""
    cut = name if len(name) <= most else name[:most] + "…"
    return cut.encode("utf-8", "replace").decode()


def shown(name: str) -> str:
    """A name that somebody sent, as a sentence has it between single quotes."""
    return escaped(short(name))


def escaped(text: str) -> str:
    """The same of a text that is short enough."""
    return lawfully(_seen(text.replace("\\", "\\\\").replace("'", "\\u0027")))


def value(one: Any, most: int = LONGEST) -> str:
    """A value as JSON, for a sentence. One that is cut says how long it is, and has a mark that
    another value does not have."""
    return lawfully(plain_value(one, most))


def plain_value(one: Any, most: int = LONGEST) -> str:
    """The same where no sentence is made of it: for humans."""
    written = json.dumps(one, ensure_ascii=False, separators=(", ", ": "))
    long = one if isinstance(one, str) else written
    if len(long) <= most:
        return _seen(written)
    cut = f"{long[:most]}…"
    if isinstance(one, str):
        cut = json.dumps(cut, ensure_ascii=False)
    return f"{_seen(cut)} ({len(long)} characters, #{mark(one)})"


def mark(one: Any) -> str:
    """By what a value is told from another one."""
    written = json.dumps(one, sort_keys=True)
    return blake2b(written.encode(), digest_size=6).hexdigest()


def _seen(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(one: str) -> str:
    return json.dumps(one)[1:-1] if not one.isascii() else f"\\u{ord(one):04x}"


def lawfully(text: str) -> str:
    """JSON that no message has to leave out."""
    while (found := UNLAWFUL.search(text)) is not None:
        # Behind "at" the gap is what makes it one.
        place = found.start() + 2 * (found[0][:2].lower() == "at")
        text = f"{text[:place]}\\u{ord(text[place]):04x}{text[place + 1 :]}"
    return text
