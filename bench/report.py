"""Prints tables, progress and bars for people. Figures come in ready; nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.bars import Bar

console = Console(highlight=False, emoji=False)


def number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "-"
    if abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif abs(value) >= 100:
        text = f"{value:.0f}"
    elif abs(value) >= 10:
        text = f"{value:.1f}"
    else:
        text = f"{value:.2f}"
    return f"{text} {unit}".rstrip()


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else number(cell) for cell in row))
    console.print(table)


def show_bars(bars: Sequence[Bar]) -> None:
    table = Table(title="Bars", title_justify="left", title_style="bold", header_style="dim")
    for column in ("", "what", "figure", "bar", "note"):
        table.add_column(column, justify="right" if column == "figure" else "left")
    for bar in bars:
        if bar.met is None:
            mark = "[yellow]not measured[/]"
        else:
            mark = "[green]met[/]" if bar.met else "[red]missed[/]"
        limit = f"{bar.sense} {number(bar.limit, bar.unit)}"
        if bar.aim is not None:
            limit += f" (aim {number(bar.aim, bar.unit)})"
        table.add_row(mark, bar.what, number(bar.figure, bar.unit), limit, bar.note)
    console.print(table)


def note(text: str) -> None:
    console.print(f"· {text}", style="dim", markup=False)
