"""What changed between two versions of a `.proto` file, each compiled with what it imports: other
files of the same publication, else the newest that the registry has of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from interlock.contracts.diff.changes import Change, ChangeReason
from interlock.contracts.registry.records import refused

Imported = Callable[[str], bytes | None]
"""Gives the text of a file that is imported. None: it is none of ours."""
_IMPORT: Final = re.compile(rb'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)
_ENDING: Final = ".proto"


def protobuf_changes(
    name: str, old: bytes, new: bytes, old_imports: Imported, new_imports: Imported
) -> list[Change]:
    """Raises InterlockError for a new one that cannot be compiled, and where there is no
    compiler."""
    from interlock.contracts.diff.protobuf import diff_descriptors
    from interlock.contracts.schemas.problems import SchemasWrong
    from interlock.contracts.schemas.protobuf_compiler import descriptor_set

    file = name if name.endswith(_ENDING) else f"{name}{_ENDING}"
    try:
        after = descriptor_set(_with_imports(file, new, new_imports))
    except SchemasWrong as wrong:
        said = "; ".join(str(one) for one in wrong.problems[:3])
        raise refused(f"{name} is no Protobuf that can be compiled: {said}") from None
    try:
        before = descriptor_set(_with_imports(file, old, old_imports))
    except SchemasWrong:
        # What cannot be compared is not known to be compatible.
        sentence = "What was published before cannot be compiled, so nobody can say what changed."
        return [Change(ChangeReason.UNDECIDED, "", True, sentence)]
    return diff_descriptors(before, after)


def _with_imports(file: str, document: bytes, imported: Imported) -> dict[str, str]:
    """A file and everything of ours that it imports, by the names by which they do."""
    found: dict[str, bytes] = {file: document}
    waiting = [document]
    while waiting:
        for raw in _IMPORT.findall(waiting.pop()):
            name = raw.decode(errors="replace")
            text = None if name in found else imported(name)
            if text is not None:
                found[name] = text
                waiting.append(text)
    return {name: text.decode(errors="replace") for name, text in found.items()}
