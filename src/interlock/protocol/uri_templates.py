"""URI templates (RFC 6570): could this URI have come from that template? Pure.

Servers list families of resources as templates, and a client that has filled one in must reach
the server whose template it was. Only that question is answered here; what a variable stands for
is for the server to find out. In doubt the answer is yes: a value may be empty, and characters
that a careful client would have encoded are taken as they are.

The match walks over the URI once. It keeps the set of all places in the template where it could
be as the bits of one number, so there is nothing to go back to, whatever strangers write.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

MAX_TEMPLATE: Final = 2048
"""A longer template can be listed, but nothing is matched with it."""

_OPERATORS: Final = "+#./;?&"
_RESERVED_OPERATORS: Final = "=,!@|"
# What may stand in a URI as it is. Everything else counts as its percent-encoded form.
_AS_IT_IS: Final = "%:/?#[]@!$&'()*+,;=-._~"

# What the value of a variable may be made of: everything but these characters.
_ANYTHING: Final = ""
_NO_SLASH: Final = "/"
_NO_HASH: Final = "#"
_KINDS: Final = (_ANYTHING, _NO_SLASH, _NO_HASH)


class UriTemplate:
    """A template that can be matched with."""

    __slots__ = (
        "_end", "_groups", "_inside", "_least", "_loops", "_only", "_prefix", "_skips", "_steps",
        "_suffix", "literal_length", "scheme", "text",
    )  # fmt: skip

    def __init__(self, text: str, parts: list[str | _Expression]) -> None:
        self.text = text
        self.literal_length = sum(len(part) for part in parts if isinstance(part, str))
        """How much of the template is fixed: the more, the more it says about a URI."""
        self._prefix = self._suffix = ""
        # The ends are compared, not walked over.
        if parts and isinstance(parts[0], str):
            self._prefix = parts[0]
            parts = parts[1:]
        scheme, colon, _ = self._prefix.partition(":")
        self.scheme = scheme.lower() if colon else ""
        """The scheme of its URIs. Empty: the template leaves it open."""
        if parts and isinstance(parts[-1], str):
            self._suffix = parts[-1]
            parts = parts[:-1]
        self._least = len(self._prefix) + len(self._suffix)
        only = parts[0] if len(parts) == 1 else None
        self._only = only.kind if isinstance(only, _Expression) and not only.head else None
        self._compile(parts)

    def _compile(self, parts: list[str | _Expression]) -> None:
        """States are bits; the state after the n-th step is 1 << n.

        `_steps`: from which states a character leads on to the next. `_loops`: in which states a
        character may be part of a value. `_skips`: from which states an expression that expands
        to nothing leads two states on; from inside of one (`_inside`) one leads out, one state on.
        """
        self._steps: dict[str, int] = {}
        self._loops = dict.fromkeys(_KINDS, 0)
        self._skips = self._inside = self._groups = 0
        state = 1
        for part in parts:
            if isinstance(part, str):
                for character in part:
                    self._steps[character] = self._steps.get(character, 0) | state
                    state <<= 1
            elif not part.head:
                self._loops[part.kind] |= state
            else:
                self._steps[part.head] = self._steps.get(part.head, 0) | state
                self._groups += 1
                self._skips |= state
                self._inside |= state << 1
                self._loops[part.kind] |= state << 1
                state <<= 2
        self._end = state

    def cost(self, uri: str) -> int:
        """The work that `matches` would have with `uri`, in steps; 0: it is decided at a glance."""
        if self._only is not None or not self._fits(uri):
            return 0
        return (len(uri) - self._least) * (1 + self._groups)

    def matches(self, uri: str) -> bool:
        """Whether `uri`, made `normalize_uri`, can be an expansion of this template."""
        if not self._fits(uri):
            return False
        middle = uri[len(self._prefix) : len(uri) - len(self._suffix)]
        if self._only is not None:
            return not self._only or self._only not in middle
        states = self._closed(1)
        steps, skips = self._steps, self._skips
        anything, no_slash, no_hash = (self._loops[kind] for kind in _KINDS)
        for character in middle:
            loops = anything
            if character != "/":
                loops |= no_slash
            if character != "#":
                loops |= no_hash
            states = ((states & steps.get(character, 0)) << 1) | (states & loops)
            if not states:
                return False
            if skips:
                states = self._closed(states)
        return bool(states & self._end)

    def _fits(self, uri: str) -> bool:
        return (
            len(uri) >= self._least and uri.startswith(self._prefix) and uri.endswith(self._suffix)
        )

    def _closed(self, states: int) -> int:
        """The states, and those that can be reached from them without a character."""
        while True:
            more = states | (states & self._inside) << 1 | (states & self._skips) << 2
            if more == states:
                return states
            states = more


class _Expression:
    """What stands between braces: the character it begins with, if any, and what may follow."""

    __slots__ = ("head", "kind")

    def __init__(self, head: str, kind: str) -> None:
        self.head = head
        self.kind = kind


def read_template(text: str) -> UriTemplate | None:
    """`text` as a template. None: it is none, or too long to be matched with."""
    if len(text) > MAX_TEMPLATE:
        return None
    parts: list[str | _Expression] = []
    rest = text
    while rest:
        literal, brace, rest = rest.partition("{")
        if "}" in literal:
            return None
        if literal:
            parts.append(normalize_uri(literal))
        if not brace:
            break
        inside, brace, rest = rest.partition("}")
        expression = _read_expression(inside) if brace else None
        if expression is None:
            return None
        parts.append(expression)
    return UriTemplate(text, parts)


def _read_expression(inside: str) -> _Expression | None:
    operator = inside[:1] if inside[:1] in _OPERATORS else ""
    variables = inside[len(operator) :].split(",")
    if inside[:1] in _RESERVED_OPERATORS or "{" in inside:
        return None
    if not all(variable.rstrip("*") for variable in variables):
        return None
    several = len(variables) > 1 or inside.endswith("*")
    if operator in ("", "+"):
        return _Expression("", _ANYTHING if operator else _NO_SLASH)
    if operator == "#":
        return _Expression("#", _ANYTHING)
    if operator in ("?", "&") or (operator == "/" and several):
        return _Expression(operator, _NO_HASH)
    return _Expression(operator, _NO_SLASH)


def normalize_uri(uri: str) -> str:
    """A URI with everything encoded that cannot stand in one, so that spellings compare alike."""
    return quote(uri, safe=_AS_IT_IS, errors="surrogatepass")
