"""The signs by which a driver says that its sign-in has ended (`auth.expiry.detect`).

`exit_code:N`, `http_status:N`, `exception:Name` and `header:NAME:VALUE`. A line with another prefix
is for another host: it is warned of, and never matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

PREFIXES: Final = ("exit_code", "http_status", "exception", "header")


class Sign(NamedTuple):
    """One line of `detect`."""

    line: str
    prefix: str
    value: str
    """Of a header what stands after its name."""
    header: str = ""
    """In lower case."""


class Signs:
    """What a driver listed."""

    def __init__(self, detect: Iterable[str], *, warn: Callable[[str], None]) -> None:
        self.known: list[Sign] = []
        for line in detect:
            sign = _read(line)
            if sign is None:
                warn(
                    f"auth.expiry.detect: {line!r} is not understood here, and never matches; "
                    "write exit_code:N, http_status:N, exception:Name or header:NAME:VALUE"
                )
            else:
                self.known.append(sign)

    def seen(
        self,
        *,
        exit_code: int | None = None,
        http_status: int | None = None,
        exception: BaseException | str = "",
        headers: Mapping[str, str] | None = None,
    ) -> str | None:
        """The first line that fits what a driver did; None: the sign-in is not to blame."""
        said = {name.lower(): value.strip() for name, value in (headers or {}).items()}
        names = _names(exception)
        for sign in self.known:
            match sign.prefix:
                case "exit_code":
                    fits = exit_code is not None and sign.value == str(exit_code)
                case "http_status":
                    fits = http_status is not None and sign.value == str(http_status)
                case "exception":
                    fits = sign.value in names
                case _:
                    fits = said.get(sign.header) == sign.value
            if fits:
                return sign.line
        return None


def _read(line: str) -> Sign | None:
    prefix, colon, value = line.partition(":")
    if not colon or prefix not in PREFIXES:
        return None
    value = value.strip()
    if prefix in ("exit_code", "http_status"):
        # Written as it is compared: `+401` and `0401` are no numbers here.
        return Sign(line, prefix, value) if _is_number(value) else None
    if prefix == "exception":
        return Sign(line, prefix, value) if value else None
    header, colon, value = value.partition(":")
    if not colon or not header.strip():
        return None
    return Sign(line, prefix, value.strip(), header.strip().lower())


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(text)) == text


def _names(exception: BaseException | str) -> frozenset[str]:
    if isinstance(exception, str):
        return frozenset({exception} if exception else ())
    return frozenset(one.__name__ for one in type(exception).__mro__)
