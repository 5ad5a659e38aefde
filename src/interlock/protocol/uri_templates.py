"""URI templates (RFC 6570): matching of a URI with a template. Pure.

Servers list resources as templates, and a client that has expanded a template must reach its
server. This module only decides whether a URI matches a template. The server extracts the values of
variables. In doubt a URI matches: a value may be empty, and characters that should be encoded are
accepted unencoded.

The match reads the URI once. All possible positions in the template are the bits of one integer, so
there is no backtracking, even for hostile templates.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

MAX_TEMPLATE: Final = 2048
"""A longer template is listed, but matches no URI."""

_OPERATORS: Final = "+#./;?&"
_RESERVED_OPERATORS: Final = "=,!@|"
# Characters that may be in a URI unencoded. All others are compared in percent-encoded form.
_UNENCODED: Final = "%:/?#[]@!$&'()*+,;=-._~"

# Characters that the value of a variable must not contain, by kind.
_ANYTHING: Final = ""
_NO_SLASH: Final = "/"
_NO_HASH: Final = "#"
_KINDS: Final = (_ANYTHING, _NO_SLASH, _NO_HASH)


class UriTemplate:
    """A compiled template."""

    __slots__ = (
        "_end",
        "_groups",
        "_inside",
        "_loops",
        "_min_length",
        "_prefix",
        "_single_kind",
        "_skips",
        "_steps",
        "_suffix",
        "literal_length",
        "scheme",
        "text",
    )  # fmt: skip

    def __init__(self, text: str, parts: list[str | _Expression]) -> None:
        self.text = text
        self.literal_length = sum(len(part) for part in parts if isinstance(part, str))
        """The number of literal characters. A template with more of them is more specific."""
        self._prefix = self._suffix = ""
        # Literal ends are compared directly, without states.
        if parts and isinstance(parts[0], str):
            self._prefix = parts[0]
            parts = parts[1:]
        scheme, colon, _ = self._prefix.partition(":")
        self.scheme = scheme.lower() if colon else ""
        """The scheme of its URIs. Empty: any scheme."""
        if parts and isinstance(parts[-1], str):
            self._suffix = parts[-1]
            parts = parts[:-1]
        self._min_length = len(self._prefix) + len(self._suffix)
        only = parts[0] if len(parts) == 1 else None
        self._single_kind = only.kind if isinstance(only, _Expression) and not only.head else None
        self._compile(parts)

    def _compile(self, parts: list[str | _Expression]) -> None:
        """Compile the parts to states. States are bits: the state after step n is 1 << n.

        `_steps`: the states from which a character leads to the next state. `_loops`: the states
        in which a character may be part of a value. `_skips`: the states from which an expression
        that expands to nothing leads two states further. `_inside`: the states inside an
        expression, from which one leads out to the next state.
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
        """Return the number of steps that `matches` needs for `uri`. 0: no steps are needed."""
        if self._single_kind is not None or not self._has_literal_ends(uri):
            return 0
        return (len(uri) - self._min_length) * (1 + self._groups)

    def matches(self, uri: str) -> bool:
        """Return whether a URI, normalized with `normalize_uri`, matches this template."""
        if not self._has_literal_ends(uri):
            return False
        middle = uri[len(self._prefix) : len(uri) - len(self._suffix)]
        if self._single_kind is not None:
            return not self._single_kind or self._single_kind not in middle
        states = self._close(1)
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
                states = self._close(states)
        return bool(states & self._end)

    def _has_literal_ends(self, uri: str) -> bool:
        return (
            len(uri) >= self._min_length
            and uri.startswith(self._prefix)
            and uri.endswith(self._suffix)
        )

    def _close(self, states: int) -> int:
        """Return the states, and those that are reachable without a character."""
        while True:
            next_states = states | (states & self._inside) << 1 | (states & self._skips) << 2
            if next_states == states:
                return states
            states = next_states


class _Expression:
    """An expression in braces: the character with which its expansion begins, if any, and the kind
    of its values."""

    __slots__ = ("head", "kind")

    def __init__(self, head: str, kind: str) -> None:
        self.head = head
        self.kind = kind


def read_template(text: str) -> UriTemplate | None:
    """Compile a template. None: it is invalid or too long."""
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
    """Return a URI with all special characters encoded, so that equal URIs compare equal."""
    return quote(uri, safe=_UNENCODED, errors="surrogatepass")
