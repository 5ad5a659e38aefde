"""List the texts that people and models read, so that they can be reviewed as a whole.

`python -m tools.message_catalog` writes `tests/messages/<package>.txt`: for each module the errors
that it raises, with their code or class, and its log lines. Values are shown as `{expression}`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "interlock"
CATALOG: Final = ROOT / "tests" / "messages"

_LOG_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})
_TERMINAL: Final = frozenset({"print_note", "print_problem"})


class Message(NamedTuple):
    """A text in the source."""

    kind: str
    """The code or the class of an error, or the level of a log line."""
    text: str


def find_messages(source: str) -> Iterator[Message]:
    """Yield the messages of a module in the order of the source."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        kind = _kind(call)
        if kind is None:
            continue
        texts = [text for value in _values(call) if (text := render(value)) and " " in text]
        for text in texts:
            yield Message(kind, text)


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _kind(call: ast.Call) -> str | None:
    """Return the kind of message that a call makes. None: it makes none."""
    if isinstance(call.func, ast.Attribute):
        name, owner = call.func.attr, call.func.value
        if name in _LOG_LEVELS and isinstance(owner, ast.Name) and owner.id in ("_log", "log"):
            return f"log {name}"
        if name in _TERMINAL and isinstance(owner, ast.Name):
            return f"terminal {name}"
    else:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
    if not name.endswith(("Error", "Problem", "BadParameter")):
        return None
    code = call.args[0] if call.args else None
    if isinstance(code, ast.Name) and code.id.isupper():
        return code.id.lower()
    return name


def render(value: ast.expr) -> str:
    """Return the text of a literal, with values as `{expression}`. Empty: it is not a text."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(
            str(part.value)
            if isinstance(part, ast.Constant)
            else "{" + ast.unparse(part.value) + "}"
            for part in value.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left, right = render(value.left), render(value.right)
        return left + right if left or right else ""
    if isinstance(value, ast.IfExp):
        return " | ".join(filter(None, [render(value.body), render(value.orelse)]))
    return ""


def catalog() -> dict[str, str]:
    """Return the text of each catalog by the name of its package."""
    packages: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE)
        found = dict.fromkeys(find_messages(path.read_text(encoding="utf-8")))
        if not found:
            continue
        package = where.parts[0] if len(where.parts) > 1 else "interlock"
        lines = [f"{message.kind}: {message.text!r}" for message in found]
        packages.setdefault(package, []).append("\n".join([f"# {where.as_posix()}", *lines, ""]))
    return {package: "\n".join(parts) for package, parts in packages.items()}


def main() -> int:
    CATALOG.mkdir(exist_ok=True)
    current = catalog()
    for path in CATALOG.glob("*.txt"):
        if path.stem not in current:
            path.unlink()
    for package, text in current.items():
        (CATALOG / f"{package}.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
