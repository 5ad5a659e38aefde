"""The book of operations: every tool of a snapshot, and the node's own, as AQL knows them.

Made anew with each snapshot, but not from nothing: an operation stays the same object while its
tool does. Names and categories are made at once, what an operation takes when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog.aql import categories, danger, naming, parameters, updates
from interlock.catalog.aql.operation import Native, Operation, Signature
from interlock.catalog.aql.trust import broken
from interlock.catalog.effects import Annotations
from interlock.catalog.offering import Tool
from interlock.catalog.snapshot import Snapshot
from interlock.config.aql import AqlConfig, OperationConfig
from interlock.errors import ProtocolError
from interlock.protocol.aql.words import OWN, RESERVED, Category, Danger, Face, fits

HIDDEN: Final = frozenset({"batch", "start_execution", "preview", "unblock", "continue_quota"})
"""Tools of the node's own that are steps of the language and no operations: nobody names them."""
LONGEST_LINE: Final = 100
"""Characters of a description in a list."""

_NOTHING: Final = OperationConfig()
_schema_of = msgspec.json.Decoder(dict[str, Raw]).decode


class _Hinted(msgspec.Struct):
    annotations: Annotations | None = None


_HINT: Final = b'Hint"'
_hints_of = msgspec.json.Decoder(_Hinted).decode
_MOST_COMPARED: Final = 64
"""So many names are looked at closely for one that was meant."""


class OperationsAt:
    """Every operation of one snapshot: `Book`."""

    __slots__ = (
        "_by_name", "_by_tool", "_hidden", "_listed", "_locals", "_words", "number", "snapshot",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        snapshot: Snapshot,
        by_tool: Mapping[Tool, Operation],
        hidden: Mapping[str, Operation],
    ) -> None:
        self.number = number
        self.snapshot = snapshot
        self._by_tool = by_tool
        self._hidden = hidden
        self._by_name = {one.name: one for one in by_tool.values() if one.name}
        for one in hidden.values():
            self._by_name.pop(one.name, None)
        own = sorted(
            (one for one in self._by_name.values() if one.native is not None),
            key=lambda one: (one.name != "introspect", one.name),
        )
        shown = (by_tool[tool] for tool in snapshot.tools if tool.upstream != OWN)
        self._listed: tuple[Operation, ...] = (*own, *shown)
        self._locals: dict[str, dict[str, Operation]] = {}
        self._words: dict[str, list[Operation]] | None = None

    def find(self, name: str) -> Operation | None:
        """The operation of this name, be it listed or withheld from lists."""
        return self._by_name.get(name)

    def own(self, name: str) -> Operation | None:
        """One that the node answers itself, also if nobody may name it."""
        found = self._hidden.get(name) or self._by_name.get(name)
        return found if found is not None and found.native is not None else None

    def of(self, tool: Tool) -> Operation:
        return self._by_tool[tool]

    def all(self) -> Sequence[Operation]:
        """Those that are listed: the node's own first, then by tool."""
        return self._listed

    # -- in a face of one namespace, operations go by their local names

    def find_in(self, name: str, face: Face) -> Operation | None:
        """What a name means to who sees this face: there its local names mean something, too, and
        nothing of other servers does.
        """
        if not face.namespace:
            return self._by_name.get(name)
        found = self._local(face.namespace).get(name) or self._by_name.get(name)
        if found is None or not (found.native or self.within(found, face.namespace)):
            return None
        return found

    def name_in(self, operation: Operation, face: Face) -> str:
        """What it is called in this face."""
        if not face.namespace or operation.native is not None:
            return operation.name
        known = self._local(face.namespace).get(operation.local)
        return operation.local if known is operation else operation.name

    @staticmethod
    def within(operation: Operation, namespace: str) -> bool:
        """Whether an operation belongs to a namespace: a server's segment, or a path of them."""
        if not namespace:
            return True
        if operation.native is not None:
            return False
        tool = operation.tool
        return tool.segment == namespace or tool.canonical.startswith(f"{namespace}.")

    def _local(self, namespace: str) -> dict[str, Operation]:
        known = self._locals.get(namespace)
        if known is None:
            known, twice = {}, set()
            for one in self._by_name.values():
                if self.within(one, namespace):
                    if one.local in known or one.local in RESERVED or one.local in self._by_name:
                        twice.add(one.local)
                    known[one.local] = one
            for name in twice:
                del known[name]
            if len(self._locals) < _MOST_COMPARED:
                self._locals[namespace] = known
        return known

    # -- what somebody may have meant

    def near(
        self, name: str, most: int = 5, sees: Callable[[Tool], bool] | None = None
    ) -> list[str]:
        """Names that somebody may have meant, the nearest first. A tool's own name, in any form
        that the catalog knows, leads to its operation. `sees`: what the asker is shown.
        """
        tool = self.snapshot.by_name.get(name)
        meant = self._by_tool.get(tool) if tool is not None else None
        wanted = naming.snake(name[:200])
        found = [] if meant is None else [meant]
        found += [one for one in self._alike(wanted) if one is not meant]
        return [
            one.name
            for one in found
            if one.name in self._by_name and (one.native or sees is None or sees(one.tool))
        ][:most]

    def _alike(self, wanted: str) -> list[Operation]:
        """Operations with a name like this one: by words, and where none is shared by letters."""
        if not wanted:
            return []
        words = self._words
        if words is None:
            words = self._words = {}
            for one in self._listed:
                for word in one.name.split("_"):
                    words.setdefault(word, []).append(one)
        shared: dict[Operation, float] = {}
        for word in set(wanted.split("_")):
            known = words.get(word)
            near = [known] if known else [words[like] for like in _spelled_like(word, words)]
            for ones in near:
                # A word that many have says little.
                weight = (1.0 if known else 0.7) / (1 + len(ones) / 8)
                for one in ones:
                    shared[one] = shared.get(one, 0.0) + weight
        rough = sorted(shared.items(), key=lambda pair: (-pair[1], pair[0].name))[:_MOST_COMPARED]
        matcher = SequenceMatcher(b=wanted, autojunk=False)
        close = []
        for one, weight in rough:
            matcher.set_seq1(one.name)
            score = weight + 2 * matcher.ratio() + (one.local == wanted)
            close.append((-score, one.name, one))
        return [one for score, _, one in sorted(close, key=lambda found: found[:2]) if score < -0.8]


def _spelled_like(word: str, words: Mapping[str, object]) -> list[str]:
    """Words that are nearly this one."""
    if len(word) < 3:
        return []
    matcher = SequenceMatcher(b=word, autojunk=False)
    found = []
    for other in words:
        if abs(len(other) - len(word)) <= 3 and (other[0] == word[0] or other[-1] == word[-1]):
            matcher.set_seq1(other)
            if matcher.quick_ratio() > 0.7 and matcher.ratio() > 0.7:
                found.append(other)
    return found[:8]


class OperationBook:
    """Makes the book of each snapshot, and keeps what has not changed."""

    def __init__(self, config: AqlConfig, natives: Iterable[Native] = ()) -> None:
        self._config = config
        self._natives = {one.name: one for one in natives}
        self._kept: dict[Tool, Operation] = {}
        self._current: OperationsAt | None = None
        self._number = 0
        self._patterns: list[tuple[str, OperationConfig]] = []
        self.on_break: Callable[[str, str, str], None] | None = None
        """Is told (server, canonical name, what) when a tool no longer takes what it took."""
        self.configure(config)

    def configure(self, config: AqlConfig, natives: Iterable[Native] | None = None) -> None:
        """What the config says from now on."""
        self._config = config
        if natives is not None:
            self._natives = {one.name: one for one in natives}
        self._patterns = list(config.operations.items())
        self._kept = {}
        self._current = None

    @property
    def natives(self) -> Mapping[str, Native]:
        """What the node answers itself, by name."""
        return self._natives

    def settings(self, canonical: str) -> OperationConfig:
        """What the config knows better about a tool. The first glob that fits."""
        for glob, settings in self._patterns:
            if fits(glob, canonical):
                return settings
        return _NOTHING

    def at(self, snapshot: Snapshot) -> OperationsAt:
        """The book of a snapshot."""
        current = self._current
        if current is None or current.snapshot is not snapshot:
            current = self._current = self._make(snapshot)
        return current

    def _make(self, snapshot: Snapshot) -> OperationsAt:
        kept, by_tool = self._kept, {}
        hidden: dict[str, Operation] = {}
        wanted: list[tuple[str, str, str]] = []
        foreign: list[tuple[Tool, str]] = []
        chosen: dict[str, str] = {}
        # By canonical name, not by place: names must not depend on who came first.
        for tool in dict.fromkeys(snapshot.by_name.values()):
            if tool.upstream == OWN:
                native = self._natives.get(tool.upstream_name)
                if native is None:
                    # A step of the language: it can be judged, and not be named.
                    by_tool[tool] = kept.get(tool) or self._foreign(tool, tool.upstream_name, "")
                    continue
                made = by_tool[tool] = kept.get(tool) or self._own(tool, native)
                if native.name in HIDDEN:
                    hidden[native.name] = made
                continue
            local = naming.local(tool.canonical, tool.upstream_name)
            foreign.append((tool, local))
            wanted.append((naming.full(tool.canonical, local), tool.canonical, tool.upstream))
            if self._patterns:
                name = self.settings(tool.canonical).name
                if name is not None:
                    chosen[tool.canonical] = name
        taken = RESERVED.keys() | self._natives.keys()
        for (tool, local), name in zip(foreign, naming.given(wanted, taken, chosen), strict=True):
            before = kept.get(tool)
            if before is None or before.name != name:
                before = self._foreign(tool, local, name)
            by_tool[tool] = before
        if self.on_break is not None and kept:
            self._compare(kept, by_tool)
        self._kept = by_tool
        self._number += 1
        return OperationsAt(self._number, snapshot, by_tool, hidden)

    def _compare(self, before: Mapping[Tool, Operation], now: Mapping[Tool, Operation]) -> None:
        """Tell of tools that no longer understand what they did."""
        gone = {tool.canonical: one for tool, one in before.items() if tool not in now}
        if not gone or self.on_break is None:
            return
        for tool, one in now.items():
            old = gone.get(tool.canonical)
            # Signatures are made only where the words of a definition have changed.
            if old is not None and old.server == one.server and old.tool.listed != tool.listed:
                what = broken(old.signature, one.signature)
                if what:
                    self.on_break(one.server, one.canonical, what)

    def _own(self, tool: Tool, native: Native) -> Operation:
        level, reasons = danger.level(native.name, native.category, tool.effect.level)
        if native.free:
            # It decides nothing by itself, and is as free as asking for a list.
            level, reasons = Danger.SAFE, ()
        return Operation(
            name=native.name,
            local=native.name,
            canonical=tool.canonical,
            server="",
            category=RESERVED.get(native.name, native.category),
            danger=level,
            reasons=reasons,
            origins={"category": "native", "danger": "native" if native.free else "derived"},
            description=native.description,
            tool=tool,
            native=native,
            sign=_sign_native,
        )

    def _foreign(self, tool: Tool, local: str, name: str) -> Operation:
        settings = self.settings(tool.canonical)
        override = None if settings.category is None else Category(settings.category)
        judged = categories.judge(
            local, tool.effect, override, tool.segment, changes=_says_it_changes(tool)
        )
        category = judged.category
        if category is Category.UPDATE and _parameters_of(tool) < updates.FEWEST:
            category = Category.EXECUTE
        declared = None if settings.danger is None else Danger[settings.danger.upper()]
        level, reasons = danger.level(local, category, tool.effect.level, declared)
        return Operation(
            name=name,
            local=local,
            canonical=tool.canonical,
            server=tool.upstream,
            category=category,
            danger=level,
            reasons=tuple(settings.reasons) or reasons,
            confidence=judged.confidence,
            needs_review=judged.needs_review,
            origins={
                "category": judged.origin,
                "category_reason": judged.reason,
                "danger": "override" if declared is not None else "derived",
                "name": "override" if settings.name else "derived",
            },
            description=parameters.one_line(tool.description, LONGEST_LINE),
            tool=tool,
            sign=self._sign,
        )

    def _sign(self, operation: Operation) -> Signature:
        surface = parameters.Surface(_schema(operation.tool))
        taken = parameters.read(surface)
        if operation.category is Category.UPDATE:
            settings = self.settings(operation.canonical)
            taken = list(updates.arranged(taken, settings.identifiers))
        return parameters.sign(
            taken, operation.category, aliases=self._config.aliases, open=surface.open
        )


def _sign_native(operation: Operation) -> Signature:
    native = operation.native
    assert native is not None
    return parameters.sign(native.parameters, operation.category, native=native)


def _schema(tool: Tool) -> Any:
    try:
        return tool.input_schema()
    except (KeyError, ProtocolError, RecursionError):
        return {}


def _says_it_changes(tool: Tool) -> bool:
    """Whether its server says that a tool does not only read. Nothing said is not that."""
    if _HINT not in tool.listed:
        return False
    try:
        hints = _hints_of(b"{" + tool.listed[1:]).annotations
    except msgspec.MsgspecError:
        return True
    if hints is None or hints.read_only_hint:
        return False
    return hints.read_only_hint is False or hints.destructive_hint is not None


def _parameters_of(tool: Tool) -> int:
    """How many parameters a tool has, at least as far as two."""
    try:
        listed = _schema_of(b"{" + tool.listed[1:])
        properties = _schema_of(_schema_of(listed["inputSchema"]).get("properties", b"{}"))
    except (KeyError, msgspec.MsgspecError):
        properties = {}
    return len(properties) or len(parameters.Surface(_schema(tool)).properties)
