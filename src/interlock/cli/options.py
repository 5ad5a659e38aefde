"""Values of options that several commands read, with words for those that are none."""

from __future__ import annotations

from collections.abc import Callable

import typer


def count(text: str | int) -> int:
    """A whole number from 1 on. Raises BadParameter."""
    shown = str(text)
    if not (shown.isascii() and shown.isdigit() and int(shown)):
        raise typer.BadParameter(f"{shown} is no count: write a whole number from 1 on.")
    return int(shown)


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words. Raises BadParameter."""

    def read(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text} is none of {', '.join(words)}.")
        return text

    return read
