"""The operation catalog: every tool of a snapshot, and the node's own, as AQL knows them.

Made anew with each snapshot, but not from nothing: an operation stays the same object while its
tool does. Names and categories are made at once, what an operation takes when somebody asks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.aql import danger
from interlock.aql.config import AqlConfig, OperationConfig
from interlock.aql.danger import TRUST, Trust
from interlock.core.catalog.effects import Annotations, Effect, EffectLevel
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import Snapshot
from interlock.errors import ProtocolError
from interlock.protocol.aql_terms import (
    BUILTIN_KEY,
    RESERVED_OPERATIONS,
    Category,
    Danger,
    OperationView,
    matches_glob,
)
from interlock.protocol.json_pointer import resolve_pointer

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


# -- What operations and their parameters are called.
#
# A name is made from what it stands for and from nothing else: not from the order in which
# servers come up, nor from a counter. Where two would be called the same, a hash of the source
# tells them apart; nobody inherits a name that another server's tool had.

SNAKE: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
"""What every public name looks like."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_PLAIN: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*\Z")
_MENDED: Final = re.compile(r"[^a-z0-9_-]")
_LONGEST_SEGMENT: Final = 63


def snake(text: str) -> str:
    """Lower case, with single underscores between words. Empty when nothing of it can be kept."""
    if _PLAIN.match(text):
        return text
    return _OTHER.sub("_", _HUMP.sub("_", text).lower()).strip("_")


def digest(source: str, size: int = 3) -> str:
    """A few hex digits that are the same tomorrow."""
    return blake2b(source.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def local_name(canonical: str, upstream_name: str) -> str:
    """The last part of a tool's name, as an operation: `createIssue` → `create_issue`.

    The canonical form has lost its capitals; where it was made of the upstream's own name, that is
    read instead.
    """
    leaf = canonical.rpartition(".")[2]
    mended = _MENDED.sub("_", upstream_name.lower())[:_LONGEST_SEGMENT]
    name = snake(upstream_name[:_LONGEST_SEGMENT] if mended == leaf else leaf)
    return _begun(name or f"tool_{digest(upstream_name)}")


def full(canonical: str, local_name: str) -> str:
    """The name of an operation before anybody else is looked at: `github_create_issue`."""
    parts = [snake(segment) for segment in canonical.split(".")[:-1]]
    name = "_".join(part for part in (*parts, local_name) if part)
    # Only the first of them has to begin with a letter.
    return _begun(name)


def _begun(name: str) -> str:
    return name if name[0].isalpha() else f"n_{name}"


def given(
    wanted: Sequence[tuple[str, str, str]], taken: Container[str], kept: Mapping[str, str]
) -> list[str]:
    """Names for operations, each once: (the name it would have, its canonical name, its server).

    `taken` are those of the node's own operations. `kept`: canonical → a name that the config
    gives. Who collides gets a hash; only the one of a single server keeps the name whose tool is
    already spelled so.
    """
    sharing: dict[str, list[int]] = {}
    names = []
    for place, (name, canonical, _) in enumerate(wanted):
        name = kept.get(canonical, name)
        while name in taken:
            name += "_tool"
        names.append(name)
        sharing.setdefault(name, []).append(place)
    used = set(sharing)
    for name, places in sharing.items():
        if len(places) == 1:
            continue
        exact = [at for at in places if wanted[at][1] in kept] or [
            at for at in places if wanted[at][1].replace(".", "_") == name
        ]
        alone = len({wanted[at][2] for at in places}) == 1 or (
            bool(exact) and wanted[exact[0]][1] in kept
        )
        keeps = exact[0] if len(exact) == 1 and alone else -1
        for at in sorted(places, key=lambda at: wanted[at][1]):
            if at != keeps:
                names[at] = _apart(name, wanted[at][1], used)
                used.add(names[at])
    return names


def _apart(name: str, canonical: str, used: Container[str]) -> str:
    """`name` with a hash of its source; a longer one in the rare case that it is somebody's."""
    for size in range(3, 33):
        other = f"{name}_{digest(canonical, size)}"
        if other not in used:
            break
    return other


def parameters(own: Iterable[str]) -> dict[str, str]:
    """Public names for the keys of one schema: own → name, in the order of the schema.

    A key that is a lawful name keeps it. Another one becomes one, behind a number where that is
    taken.
    """
    keys = list(own)
    lawful = {key for key in keys if SNAKE.match(key)}
    used, names = set(lawful), {}
    for key in keys:
        if key in lawful:
            names[key] = key
            continue
        name = base = _parameter(key)
        number = 2
        while name in used:
            name = f"{base}_{number}"
            number += 1
        used.add(name)
        names[key] = name
    return names


def _parameter(key: str) -> str:
    name = snake(key)
    if not name:
        return f"p_{digest(key)}"
    if key.startswith("_"):
        return f"x_{name}"
    return name if name[0].isalpha() else f"p_{name}"


# -- An operation: a tool of the catalog as AQL sees it, or one that the node answers itself.


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of an operation."""

    name: str
    """In snake_case, as AQL shows it."""
    own: str
    """As the upstream wants it."""
    type: str
    required: bool
    schema: dict[str, Any]
    description: str = ""
    inside: bool = False
    """Whether it belongs into UPDATE's `input`."""
    sensitive: bool = False
    deprecated: str = ""


class Signature(msgspec.Struct, frozen=True):
    """What an operation takes."""

    parameters: tuple[Parameter, ...]
    by_name: dict[str, Parameter]
    aliases: dict[str, str]
    """Other spellings that are understood → the name."""
    required: frozenset[str]
    names: frozenset[str]
    same: bool
    """Nothing to rename, nothing to unfold: the bytes pass as they are."""
    features: frozenset[str]
    """Features of the language that may stand beside the parameters, by their plain names."""
    open: bool = False
    """The tool takes parameters, too, that its schema does not name."""


class BuiltinOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the node answers itself. Its tool in the catalog is made from this."""

    name: str
    category: Category
    effect: str
    """A word of `EffectLevel`."""
    description: str
    answer: Callable[[Any], Any]
    """Takes an `AqlRequest`; returns data, a `BuiltinResponse`, or an awaitable of one. Raises
    AqlError."""
    parameters: tuple[Parameter, ...] = ()
    returns: str = "object"
    gives: tuple[tuple[str, str, str], ...] = ()
    """The fields of what it returns: name, type, and what it is."""
    free: bool = False
    """As free as asking for a list: it looks at identity itself, and shows what its caller sees."""
    lifecycle: bool = False
    listed: Callable[[], bool] | None = None
    """Whether it is in lists and searches now. None: it always is."""
    example: dict[str, Any] = {}


class Operation:
    """Made once for a tool, and kept while the tool is the same. Compared by identity."""

    __slots__ = (
        "_sign",
        "_signature",
        "canonical",
        "category",
        "confidence",
        "danger",
        "description",
        "local",
        "name",
        "native",
        "needs_review",
        "origins",
        "reasons",
        "server",
        "tool",
    )

    def __init__(
        self,
        *,
        name: str,
        local: str,
        canonical: str,
        server: str,
        category: Category,
        danger: Danger,
        tool: Tool,
        sign: Callable[[Operation], Signature],
        reasons: tuple[str, ...] = (),
        confidence: str = "high",
        needs_review: bool = False,
        origins: dict[str, str] | None = None,
        description: str = "",
        native: BuiltinOperation | None = None,
    ) -> None:
        """`sign` makes its signature, when somebody first asks for it."""
        self.name = name
        self.local = local
        """The last segment of its tool's name, in snake_case."""
        self.canonical = canonical
        self.server = server
        self.category = category
        self.danger = danger
        self.reasons = reasons
        self.confidence = confidence
        self.needs_review = needs_review
        self.origins = origins or {}
        """What was taken from where: `category` → `override`, `annotations`, `verb`, …"""
        self.description = description
        self.tool = tool
        self.native = native
        self._sign = sign
        self._signature: Signature | None = None

    @property
    def signature(self) -> Signature:
        made = self._signature
        if made is None:
            made = self._signature = self._sign(self)
        return made

    def __repr__(self) -> str:
        return f"Operation({self.name}, {self.category.value})"


OperationFinder = Callable[[str, OperationView], Operation | None]
"""Finds the operation of a name in a face."""


class OperationCatalog(Protocol):
    """Every operation of one snapshot of the catalog."""

    number: int
    """Another one for another snapshot."""

    def find(self, name: str) -> Operation | None: ...

    def of(self, tool: Tool) -> Operation: ...

    def all(self) -> Sequence[Operation]: ...

    def near(
        self, name: str, most: int = 5, sees: Callable[[Tool], bool] | None = None
    ) -> list[str]:
        """Names that somebody may have meant, nearest first. `sees`: what the asker is shown."""


# -- What an operation takes, read from its tool's schema: one table for checking, translating and
# introspection. The schema itself stays what is validated against; this only knows its surface.

ANY: Final = "any"
TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", ANY})
INPUT: Final = "input"
MOST: Final = 1_000
"""Parameters that are shown of one tool. A schema with more is a mistake or an attack."""
LONGEST_PARAMETER_LINE: Final = 300
"""Characters of a parameter's description."""

_DEEPEST: Final = 16
_MOST_PARTS: Final = 500
"""Alternatives that are followed. They may lead in circles, ten at a time."""
_BLANK: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+"
)
_SECRET: Final = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|pwd|secret|api_?key|apikey|private_key|access_key"
    r"|token|credential|credentials|pin_code|cvv|ssn)(?:$|_)"
)
_NOT_SECRET: Final = re.compile(r"(?:^|_)(?:max|page|next|confirmation|num|count|cursor)_|_tokens$")


def one_line(text: str, most: int) -> str:
    """Text of a server on one line, without characters that hide things, and cut."""
    # Only so much of it is looked at, however long it is.
    text = _BLANK.sub(" ", text[: most * 4]).strip()
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def is_secret(name: str) -> bool:
    """Whether a parameter of this name holds what nobody should read over a shoulder."""
    return _SECRET.search(name) is not None and _NOT_SECRET.search(name) is None


class SchemaProperties:
    """The top level of a schema: properties, what of them is required, and whether others may
    come. References and alternatives are followed as far as that takes no guessing.
    """

    __slots__ = ("_closed", "_left", "open", "properties", "required", "root")

    def __init__(self, schema: Any) -> None:
        self.root: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.properties: dict[str, Any] = {}
        self.open = False
        self._left = _MOST_PARTS
        self._closed = False
        self.required: set[str] = self._read(self.root, 0)
        if not self.properties and not self._closed:
            # It names no parameter and forbids none: whatever the server takes may be given.
            self.open = True

    def _read(self, schema: dict[str, Any], depth: int) -> set[str]:
        """Take over the properties of `schema`. Returns those that it requires."""
        schema = self.followed(schema)
        self._left -= 1
        own = schema.get("properties")
        if isinstance(own, dict):
            for key, value in own.items():
                if len(self.properties) >= MOST and key not in self.properties:
                    break
                self.properties.setdefault(key, value)
        others = schema.get("additionalProperties")
        if others is True or (isinstance(others, dict)) or schema.get("patternProperties"):
            self.open = True
        if others is False or schema.get("unevaluatedProperties") is False:
            self._closed = True
        wanted = schema.get("required")
        required = (
            {one for one in wanted if isinstance(one, str)} if isinstance(wanted, list) else set()
        )
        if depth < _DEEPEST:
            for part in _parts(schema, "allOf"):
                if self._left > 0:
                    required |= self._read(part, depth + 1)
            for word in ("oneOf", "anyOf"):
                branches = [
                    self._read(part, depth + 1) for part in _parts(schema, word) if self._left > 0
                ]
                if branches:
                    required |= set.intersection(*branches)
        return required & self.properties.keys() if depth == 0 else required

    def followed(self, schema: Any) -> dict[str, Any]:
        """What a reference within this schema leads to. One that leads in a circle, or nowhere,
        leads to a schema that says nothing.
        """
        seen = 0
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            found = self._at(schema["$ref"])
            seen += 1
            if found is None or seen > _DEEPEST:
                return {}
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**found, **rest} if rest else found
        return schema if isinstance(schema, dict) else {}

    def _at(self, reference: str) -> dict[str, Any] | None:
        if not reference.startswith("#"):
            return None
        place = resolve_pointer(self.root, reference[1:])
        return place if isinstance(place, dict) else None


def _parts(schema: dict[str, Any], word: str) -> list[dict[str, Any]]:
    parts = schema.get(word)
    return (
        [part for part in parts if isinstance(part, dict)][:MOST] if isinstance(parts, list) else []
    )


def type_of(schema: Any, depth: int = 0) -> str:
    """The type of a value, in one word."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return ANY
    said = schema.get("type")
    if isinstance(said, list):
        others = [kind for kind in said if kind != "null"]
        said = others[0] if len(others) == 1 else None
    if isinstance(said, str):
        return said if said in TYPES else ANY
    if "properties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        kinds = {_kind(value) for value in values if value is not None}
        return kinds.pop() if len(kinds) == 1 else ANY
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if isinstance(parts, list):
            kinds = {type_of(part, depth + 1) for part in parts if not _is_null(part)}
            return kinds.pop() if len(kinds) == 1 else ANY
    return ANY


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "array"


def read(surface: SchemaProperties) -> list[Parameter]:
    """The parameters of a tool, in the order of its schema."""
    found = []
    for own, name in parameters(surface.properties).items():
        schema = surface.followed(surface.properties[own])
        about = schema.get("description") or schema.get("title")
        found.append(
            Parameter(
                name=name,
                own=own,
                type=type_of(schema),
                required=own in surface.required,
                schema=schema,
                description=one_line(about, LONGEST_PARAMETER_LINE)
                if isinstance(about, str)
                else "",
                sensitive=is_secret(name)
                or schema.get("writeOnly") is True
                or schema.get("format") == "password",
                deprecated="deprecated" if schema.get("deprecated") is True else "",
            )
        )
    return found


# -- features of the language that stand beside the parameters, each defined once

FEATURES: Final[dict[str, Parameter]] = {
    one.name: one
    for one in (
        Parameter(
            "fields", "fields", "array", False,
            {"type": "array", "items": {"type": "string"}},
            "Only these fields of the result, such as id or owner.name.",
        ),
        Parameter(
            "preset", "preset", "string", False,
            {"type": "string", "enum": ["minimal", "standard", "full"]},
            "Instead of fields: how much of the result.",
        ),
        Parameter(
            "dry_run", "dry_run", "boolean", False,
            {"type": "boolean", "default": False},
            "Say what would be done, and do nothing.",
        ),
        Parameter(
            "confirmation_token", "confirmation_token", "string", False,
            {"type": "string"},
            "From CONFIRMATION_REQUIRED, to collect what a human has approved.",
        ),
    )
}  # fmt: skip
FIRST: Final = Parameter(
    "first", "first", "integer", False,
    {"type": "integer", "minimum": 1},
    "So many of them: 20 unless you say so, no more than 100.",
)  # fmt: skip
AFTER: Final = Parameter(
    "after", "after", "string", False, {"type": "string", "maxLength": 1024},
    "The endCursor of the page before.",
)  # fmt: skip
"""Of every list that the node makes itself."""
_OF_READERS: Final = frozenset({"fields", "preset"})
_OF_WRITERS: Final = frozenset({"dry_run", "confirmation_token"})
_OF_LIFECYCLE: Final = frozenset({"confirmation_token"})


def features_of(
    category: Category, names: Iterable[str], native: BuiltinOperation | None
) -> frozenset[str]:
    """What may stand beside parameters of these names."""
    if category is Category.READ:
        may = _OF_READERS
    elif native is not None and native.free:
        may = frozenset()
    elif native is not None and native.lifecycle:
        # A human may have to confirm it; to say what would be done says nothing.
        may = _OF_LIFECYCLE
    else:
        may = _OF_WRITERS
    return may.difference(names)


def sign(
    parameters: Sequence[Parameter],
    category: Category,
    *,
    native: BuiltinOperation | None = None,
    aliases: bool = True,
    open: bool = False,
) -> Signature:
    """The signature of an operation with these parameters."""
    by_name = {one.name: one for one in parameters}
    nested = any(one.inside for one in parameters)
    other: dict[str, str] = {}
    if aliases:
        other = {
            one.own: one.name
            for one in parameters
            if one.own != one.name and one.own not in by_name and not one.own.startswith("_")
        }
    outside = [one for one in parameters if not one.inside]
    names = {one.name for one in outside}
    required = {one.name for one in outside if one.required}
    if nested:
        names.add(INPUT)
        required.add(INPUT)
    return Signature(
        parameters=tuple(parameters),
        by_name=by_name,
        aliases=other,
        required=frozenset(required),
        names=frozenset(names),
        same=not nested and all(one.own == one.name for one in parameters),
        features=features_of(category, (*names, *other), native),
        open=open,
    )


def input_schema(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """The schema of the tool that stands in the catalog for an operation of the node's own."""
    listed = list(parameters)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            one.own: {**one.schema, **({"description": one.description} if one.description else {})}
            for one in listed
        },
        "additionalProperties": False,
    }
    required = [one.own for one in listed if one.required]
    if required:
        schema["required"] = required
    return schema


# -- UPDATE's shape: what names the resource stands beside, what is changed of it stands in
# `input`.
#
# Foreign tools take flat arguments. Which of them are identifiers is known by the config, else by
# their names.

_NAMES_SOMETHING: Final = re.compile(
    r"(?:.*_)?(?:id|uuid|name|path|number|key)\Z|(?:owner|repo|uri|url|ref|slug)\Z"
)
FEWEST: Final = 2
"""With fewer parameters there is nothing to update something with."""


def arranged(
    parameters: Sequence[Parameter], identifiers: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """The parameters of an UPDATE, those of its `input` marked. `identifiers` are the config's: own
    or public names, required or not.
    """
    if identifiers:
        named = set(identifiers)
        outside = {one.name for one in parameters if one.name in named or one.own in named}
    else:
        outside = {
            one.name for one in parameters if one.required and _NAMES_SOMETHING.match(one.name)
        }
    outside.discard(INPUT)
    if len(outside) == len(parameters) or not outside:
        # Nothing left to change, or nothing to change it of: the first that is required names it.
        first = next((one for one in parameters if one.required and one.name != INPUT), None)
        outside = set() if first is None else {first.name}
    return tuple(one if one.name in outside else replace(one, inside=True) for one in parameters)


# -- Which of the five categories a tool belongs to, and how sure that is.
#
# The config decides; then what the node already knows of the tool's effect; then the verb in its
# name. What is not known counts as EXECUTE. A category says how an operation is shown and called:
# it never changes an effect, and so no decision of the policy.
#
# READ is what only reads. Where no effect says so, a verb does that means nothing else, with no
# word of change beside it, and only if the server has not said that the tool changes something.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS: Final[dict[Category, str]] = {
    Category.DELETE: """
        delete remove purge unregister clear drop destroy erase wipe truncate uninstall unlink
        revoke archive trash hide discard prune evict unpublish del rm forget expunge deregister
        unset detach unsubscribe unfollow ban kick cleanup""",
    Category.UPDATE: """
        update edit set rename move patch merge modify change replace put write overwrite assign
        unassign adjust append prepend mark unmark toggle enable disable configure tag untag label
        relabel reorder resize transfer alter amend revise rewrite restore lock unlock pin unpin
        attach link reassign transition resolve reopen close complete approve reject accept decline
        promote demote rotate migrate fix mute unmute react vote upvote downvote rate annotate
        reschedule revert rollback reply increment decrement stage unstage grant share unshare
        follow subscribe bind unbind mount unmount protect unprotect unarchive unapprove deny scale
        upgrade downgrade rebase""",
    Category.CREATE: """
        create add upload register import insert new make generate build clone fork copy duplicate
        define upsert save store record log comment book schedule draft init initialize bootstrap
        scaffold provision allocate enroll invite reinvite remember compose mint ingest install""",
    Category.READ: """
        get list search find export count read fetch query show view describe lookup retrieve
        download check inspect browse explain compare diff summarize analyze analyse calculate
        compute convert translate preview validate status info head tail scan detect estimate lint
        measure monitor select filter aggregate display load peek poll ping recall suggest recommend
        rank rerank whoami which what glob grep stat exists is has discover enumerate extract parse
        introspect trace blame history screenshot snapshot ls cat tree pwd geocode research
        details""",
    Category.EXECUTE: """
        execute run start stop resume trigger invoke cancel pause abort restart launch call send
        post publish notify deploy pay submit dispatch emit broadcast email charge refund perform
        process apply kill terminate shutdown reboot wake suspend click navigate press type drag
        hover scroll connect disconnect login logout sync refresh retry confirm authorize
        authenticate sign encrypt decrypt push pull commit checkout test crawl scrape evaluate
        purchase buy order tweet dm sms dial print play skip spawn exec sleep wait handle release
        tap swipe fill focus reset rerun rollout emulate interact manage""",
}
_NOUNS: Final = _words("""
    comment record log order test link tag label type process email sms dm rate schedule draft book
    call store handle charge sign print play head tail tree copy release new fill focus stage share
    vote mark history status info stat what which is has details monitor filter view query scan
    trace snapshot screenshot""")
"""Verbs at the beginning of a name, unless another one ends it; elsewhere rather what it is about.
"""
_MODIFIERS: Final = _words("batch bulk multi mass force safe quick api")
"""They stand in front of verbs."""
_CHANGES: Final = _words("""
    delete remove purge unregister clear drop destroy erase wipe truncate uninstall revoke archive
    update edit set rename move patch merge modify change replace put write overwrite assign append
    create add upload register import insert upsert save""")
"""Verbs that nobody means otherwise: who says that such a tool only reads is not believed."""
_NOT_ONLY_READING: Final = _words("""
    query research extract load snapshot monitor select filter scan trace""")
"""Verbs of reading that many tools mean otherwise: `query` may run anything."""
_THEN: Final = _words("and then or plus")
"""Behind them stands a verb, whatever else it could be."""
_OF: Final = {word: category for category, words in _WORDS.items() for word in _words(words)}

_THINGS: Final = frozenset(
    {("pull", "request"), ("merge", "request"), ("check", "run"), ("check", "suite")}
)
"""What begins like a verb, and is a thing."""
_WRITING: Final = (
    frozenset(word for word, category in _OF.items() if category is not Category.READ)
    - _NOUNS
    - _words("commit build run fork post import")
)
"""Words that no tool has in its name that only reads."""
_ENDPOINTS: Final = _words("discover query manage operate authorize administer observe act control")
"""Verbs of endpoints, that no tool begins with."""
EXTERNAL: Final = _words("""
    send post publish notify deploy pay submit dispatch broadcast email charge refund purchase buy
    order tweet dm sms""")
"""What they do leaves the system: no annotation makes them harmless."""
_RISK: Final = {
    Category.READ: 0, Category.CREATE: 1, Category.UPDATE: 2, Category.EXECUTE: 3,
    Category.DELETE: 4,
}  # fmt: skip

HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"


class CategoryChoice(NamedTuple):
    """A category, and the reason for it."""

    category: Category
    confidence: str
    origin: str
    """`override`, `effects`, `annotations`, `verb` or `unknown`."""
    needs_review: bool = False
    reason: str = ""


class NameVerb(NamedTuple):
    """What the name of a tool says that it does."""

    category: Category
    word: str
    sure: bool
    """It stands where verbs stand."""


def of_method(method: str) -> Category:
    """The category of what an HTTP description offers under this method."""
    return {
        "GET": Category.READ,
        "HEAD": Category.READ,
        "OPTIONS": Category.READ,
        "PUT": Category.UPDATE,
        "PATCH": Category.UPDATE,
        "DELETE": Category.DELETE,
    }.get(method.upper(), Category.CREATE if method.upper() == "POST" else Category.EXECUTE)


def verb_of(local: str, segment: str = "") -> NameVerb | None:
    """What the name of an operation says, without its server. None: nothing that is known.

    The first word, else the last, else one between them; a server's own name in front of its tools
    does not count. Of two words that are joined the riskier one counts, but what makes what is not
    there is CREATE.
    """
    tokens = _without(local, segment)
    while len(tokens) > 1 and tokens[0] in _MODIFIERS:
        tokens = tokens[1:]
    last = None if tokens[-1] in _NOUNS or len(tokens) == 1 else _OF.get(tokens[-1])
    begins = (tokens[0], tokens[1].removesuffix("s") if len(tokens) > 1 else "")
    first = None if begins in _THINGS else _OF.get(tokens[0])
    if first is not None and not (last is not None and tokens[0] in _NOUNS):
        if len(tokens) > 2 and tokens[1] in ("or", "and"):
            second = _OF.get(tokens[2])
            if second is not None:
                return _joined(first, second, tokens)
        if tokens[0] == "check" and len(tokens) > 1 and tokens[1] in ("in", "out"):
            return NameVerb(Category.UPDATE, f"check_{tokens[1]}", True)
        return NameVerb(first, tokens[0], True)
    if last is not None:
        return NameVerb(last, tokens[-1], True)
    verb = _between([word for word in tokens[1:-1] if word not in _NOUNS])
    if verb is None:
        # That something only reads is not taken from a word that is rather a thing.
        verb = _between([word for word in tokens[1:] if _OF.get(word) is not Category.READ])
    return verb


def _without(local: str, segment: str) -> list[str]:
    """The words of a name, without its server's own in front."""
    tokens = local.split("_")
    own = segment.replace("-", "_").split("_")
    if len(tokens) > len(own) and tokens[: len(own)] == own:
        return tokens[len(own) :]
    return tokens


def _between(words: list[str]) -> NameVerb | None:
    """The riskiest of words that stand where verbs seldom do."""
    found = [(_RISK[_OF[word]], word) for word in words if word in _OF]
    if not found:
        return None
    word = max(found)[1]
    return NameVerb(_OF[word], word, False)


def _joined(first: Category, second: Category, tokens: list[str]) -> NameVerb:
    words = "_".join(tokens[:3])
    pair = {first, second}
    if tokens[1] == "or" and Category.CREATE in pair and Category.DELETE not in pair:
        return NameVerb(Category.CREATE, words, True)
    return NameVerb(max(first, second, key=_RISK.__getitem__), words, True)


def _changing_word(tokens: list[str], reads: str) -> tuple[str, Category] | None:
    """A word of change in a name that says it reads by `reads`, and what it makes of the tool."""
    found: tuple[str, Category] | None = None
    for at, word in enumerate(tokens):
        category = _OF.get(word, Category.READ)
        following = "" if at + 1 == len(tokens) else tokens[at + 1].removesuffix("s")
        if category is Category.READ or (word, following) in _THINGS:
            continue
        if at and tokens[at - 1] in _THEN:
            return word, category
        if found is None and word in _WRITING:
            # Behind the other verb it may be what the reading is about: that is not known.
            found = word, category if reads in tokens[at:] else Category.EXECUTE
    return found


def judge(
    local: str,
    effect: Effect,
    override: Category | None = None,
    segment: str = "",
    *,
    changes: bool = False,
) -> CategoryChoice:
    """The category of a tool of this name and effect. `changes`: its server says of it that it does
    not only read."""
    if override is not None:
        return CategoryChoice(override, HIGH, "override", reason="said by the config")
    verb = verb_of(local, segment)
    level, source = effect.level, effect.source
    if level is EffectLevel.READ_ONLY:
        return _reading(verb, source)
    if verb is None:
        if level is EffectLevel.ADDITIVE and source == "config":
            return CategoryChoice(
                Category.CREATE, MEDIUM, "effects", reason="only adds, says the config"
            )
        return CategoryChoice(
            Category.EXECUTE, LOW, "unknown", True, "no verb in its name is known"
        )
    confidence = HIGH if verb.sure else MEDIUM
    reason = f"the word {verb.word}"
    if level is EffectLevel.IRREVERSIBLE:
        if verb.category is Category.READ:
            # Whoever is right: something that cannot be undone is not shown among the readers.
            return CategoryChoice(
                Category.EXECUTE, MEDIUM, "annotations", True,
                f"{reason}, though it cannot be undone",
            )  # fmt: skip
        if verb.category is Category.CREATE and source == "annotations":
            return CategoryChoice(
                Category.UPDATE, MEDIUM, "annotations", reason=f"{reason}, and may overwrite"
            )
    if verb.category is Category.READ:
        return _by_name_alone(local, segment, verb, changes or source == "config")
    if verb.word in EXTERNAL:
        reason += ", which acts on the world outside"
    elif "_or_" in verb.word or verb.word == "upsert":
        reason += ": what it names may not be there yet"
    return CategoryChoice(verb.category, confidence, "verb", reason=reason)


def _by_name_alone(local: str, segment: str, verb: NameVerb, changes: bool) -> CategoryChoice:
    """Of a tool whose name says that it reads, while no effect does."""
    reason = f"the word {verb.word}"
    if changes:
        reason += ", though it is declared to change something"
        return CategoryChoice(Category.EXECUTE, MEDIUM, "annotations", True, reason)
    word = _changing_word(_without(local, segment), verb.word)
    if word is not None:
        return CategoryChoice(word[1], MEDIUM, "verb", True, f"{reason}, and the word {word[0]}")
    if verb.word in _NOT_ONLY_READING:
        return CategoryChoice(
            Category.EXECUTE, LOW, "verb", True, f"{reason}, which may do anything"
        )
    return CategoryChoice(Category.READ, HIGH if verb.sure else MEDIUM, "verb", reason=reason)


def _reading(verb: NameVerb | None, source: str) -> CategoryChoice:
    """Of a tool that only reads, as far as the node knows."""
    if source == "config":
        return CategoryChoice(Category.READ, HIGH, "effects", reason="only reads, says the config")
    if verb is None or verb.category is Category.READ:
        return CategoryChoice(
            Category.READ, HIGH, "annotations", reason="only reads, says its server"
        )
    joined = any(word in _CHANGES or word in EXTERNAL for word in verb.word.split("_"))
    if not joined or not verb.sure:
        return CategoryChoice(
            Category.READ, MEDIUM, "annotations", reason="only reads, says its server"
        )
    return CategoryChoice(
        verb.category, MEDIUM, "verb", True,
        f"the word {verb.word}, though its server says it only reads",
    )  # fmt: skip


def is_action(name: str) -> bool:
    """Whether the name of an endpoint says what is done there, and not only with what."""
    return any(word in _OF or word in _ENDPOINTS for word in name.split("_"))


# -- How far each server is trusted with dangerous operations, and how that came about.
#
# Trust rises step by step and falls at once. What a server lists may only become wider: when
# something that could be asked before is no longer understood, it is trusted no more than
# something that nobody has tried.

CONFIGURED: Final[Trust] = "validated"
"""Of a server that the config names: an operator chose it."""
REGISTERED: Final[Trust] = "generated"
"""Of one that registered itself."""
_MOST_CHANGES: Final = 100
"""So many are remembered of each server."""


class TrustChange(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """A change of the trust in a server."""

    from_: Trust
    to: Trust
    at: float
    by: str
    reason: str = ""


class ServerTrust:
    """The trust of one node in its servers."""

    def __init__(
        self,
        declared: Mapping[str, Trust],
        *,
        registered: Callable[[str], bool] = lambda _: False,
        wall_clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            declared: The trust that the config declares, by server.
            registered: Whether a server came by itself.
            on_change: Called when the trust in some server has changed.
        """
        self._registered = registered
        self._wall_clock = wall_clock
        self._declared = dict(declared)
        self._levels: dict[str, Trust] = dict(declared)
        self._history: dict[str, list[TrustChange]] = {}
        self._on_change = on_change

    def __call__(self, server: str) -> Trust:
        known = self._levels.get(server)
        if known is not None:
            return known
        return REGISTERED if self._registered(server) else CONFIGURED

    def is_declared(self, server: str) -> bool:
        """Whether the config says how far this server is trusted."""
        return server in self._declared

    def configure(self, declared: Mapping[str, Trust]) -> list[str]:
        """What the config says from now on. Returns a sentence for each promotion that skips a
        level: it is not made.
        """
        problems = []
        for server in sorted(self._declared.keys() | declared.keys()):
            if self._declared.get(server) == declared.get(server):
                continue
            wanted = declared.get(server) or (
                REGISTERED if self._registered(server) else CONFIGURED
            )
            problem = self.change(server, wanted, "config")
            if problem is not None:
                problems.append(problem)
        self._declared = dict(declared)
        return problems

    def change(self, server: str, to: Trust, by: str, reason: str = "") -> str | None:
        """Promote a server by one level, or demote it to any. Returns why not, if not."""
        now = self(server)
        if to == now:
            return None
        if TRUST.index(to) > TRUST.index(now) + 1:
            following = TRUST[TRUST.index(now) + 1]
            return (
                f"'{server}' is {now}: it can become {following} next, not {to}. Trust rises by "
                "one level after the other."
            )
        self._levels[server] = to
        self._on_change()
        history = self._history.setdefault(server, [])
        history.append(TrustChange(now, to, self._wall_clock(), by, reason))
        del history[:-_MOST_CHANGES]
        return None

    def broke(self, server: str, operation: str, what: str) -> None:
        """A server no longer understands what could be asked before."""
        if TRUST.index(self(server)) > TRUST.index(REGISTERED):
            self.change(server, REGISTERED, "node", f"{operation}: {what}")

    def history(self, server: str) -> list[dict[str, Any]]:
        """How its trust came about, the oldest first."""
        return [msgspec.to_builtins(change) for change in self._history.get(server, ())]


def broken(before: Signature, now: Signature) -> str:
    """What of an operation is no longer understood. Empty: nothing."""
    for one in before.parameters:
        other = now.by_name.get(one.name)
        if other is None:
            if not now.open:
                return f"parameter {one.name} is gone"
        elif other.type != one.type and other.type != "any":
            return f"parameter {one.name} was {one.type} and is {other.type}"
        elif other.inside != one.inside:
            return f"parameter {one.name} has another place"
    known = {one.name: one for one in before.parameters}
    for one in now.parameters:
        if one.required and (one.name not in known or not known[one.name].required):
            return f"parameter {one.name} is required now"
    return ""


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


class OperationSnapshot:
    """Every operation of one snapshot, as an `OperationCatalog`."""

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
        shown = (by_tool[tool] for tool in snapshot.plain_tools if tool.upstream != BUILTIN_KEY)
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

    def find_in(self, name: str, face: OperationView) -> Operation | None:
        """What a name means to who sees this face: there its local names mean something, too, and
        nothing of other servers does.
        """
        if not face.namespace:
            return self._by_name.get(name)
        found = self._local(face.namespace).get(name) or self._by_name.get(name)
        if found is None or not (found.native or self.within(found, face.namespace)):
            return None
        return found

    def name_in(self, operation: Operation, face: OperationView) -> str:
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
                    if (
                        one.local in known
                        or one.local in RESERVED_OPERATIONS
                        or one.local in self._by_name
                    ):
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
        wanted = snake(name[:200])
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


class OperationCatalogBuilder:
    """Builds the operation catalog of each snapshot, and reuses what has not changed."""

    def __init__(
        self,
        config: AqlConfig,
        natives: Iterable[BuiltinOperation] = (),
        *,
        on_break: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """`on_break`: called with (server, canonical name, what) when a tool no longer takes what
        it took."""
        self._config = config
        self._natives = {one.name: one for one in natives}
        self._kept: dict[Tool, Operation] = {}
        self._current: OperationSnapshot | None = None
        self._number = 0
        self._patterns: list[tuple[str, OperationConfig]] = []
        self._on_break = on_break
        self.configure(config)

    def configure(
        self, config: AqlConfig, natives: Iterable[BuiltinOperation] | None = None
    ) -> None:
        """What the config says from now on."""
        self._config = config
        if natives is not None:
            self._natives = {one.name: one for one in natives}
        self._patterns = list(config.operations.items())
        self._kept = {}
        self._current = None

    @property
    def natives(self) -> Mapping[str, BuiltinOperation]:
        """What the node answers itself, by name."""
        return self._natives

    def settings(self, canonical: str) -> OperationConfig:
        """What the config knows better about a tool. The first glob that fits."""
        for glob, settings in self._patterns:
            if matches_glob(glob, canonical):
                return settings
        return _NOTHING

    def at(self, snapshot: Snapshot) -> OperationSnapshot:
        """The operation catalog of a snapshot."""
        current = self._current
        if current is None or current.snapshot is not snapshot:
            current = self._current = self._make(snapshot)
        return current

    def _make(self, snapshot: Snapshot) -> OperationSnapshot:
        kept, by_tool = self._kept, {}
        hidden: dict[str, Operation] = {}
        wanted: list[tuple[str, str, str]] = []
        foreign: list[tuple[Tool, str]] = []
        chosen: dict[str, str] = {}
        # By canonical name, not by place: names must not depend on who came first.
        for tool in dict.fromkeys(snapshot.by_name.values()):
            if tool.upstream == BUILTIN_KEY:
                native = self._natives.get(tool.upstream_name)
                if native is None:
                    # A step of the language: it can be judged, and not be named.
                    by_tool[tool] = kept.get(tool) or self._foreign(tool, tool.upstream_name, "")
                    continue
                made = by_tool[tool] = kept.get(tool) or self._own(tool, native)
                if native.name in HIDDEN:
                    hidden[native.name] = made
                continue
            local = local_name(tool.canonical, tool.upstream_name)
            foreign.append((tool, local))
            wanted.append((full(tool.canonical, local), tool.canonical, tool.upstream))
            if self._patterns:
                name = self.settings(tool.canonical).name
                if name is not None:
                    chosen[tool.canonical] = name
        taken = RESERVED_OPERATIONS.keys() | self._natives.keys()
        for (tool, local), name in zip(foreign, given(wanted, taken, chosen), strict=True):
            before = kept.get(tool)
            if before is None or before.name != name:
                before = self._foreign(tool, local, name)
            by_tool[tool] = before
        if self._on_break is not None and kept:
            self._compare(kept, by_tool)
        self._kept = by_tool
        self._number += 1
        return OperationSnapshot(self._number, snapshot, by_tool, hidden)

    def _compare(self, before: Mapping[Tool, Operation], now: Mapping[Tool, Operation]) -> None:
        """Tell of tools that no longer understand what they did."""
        gone = {tool.canonical: one for tool, one in before.items() if tool not in now}
        if not gone or self._on_break is None:
            return
        for tool, one in now.items():
            old = gone.get(tool.canonical)
            # Signatures are made only where the words of a definition have changed.
            if old is not None and old.server == one.server and old.tool.listed != tool.listed:
                what = broken(old.signature, one.signature)
                if what:
                    self._on_break(one.server, one.canonical, what)

    def _own(self, tool: Tool, native: BuiltinOperation) -> Operation:
        level, reasons = danger.level(native.name, native.category, tool.effect.level)
        if native.free:
            # It decides nothing by itself, and is as free as asking for a list.
            level, reasons = Danger.SAFE, ()
        return Operation(
            name=native.name,
            local=native.name,
            canonical=tool.canonical,
            server="",
            category=RESERVED_OPERATIONS.get(native.name, native.category),
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
        judged = judge(local, tool.effect, override, tool.segment, changes=_says_it_changes(tool))
        category = judged.category
        if category is Category.UPDATE and _parameters_of(tool) < FEWEST:
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
            description=one_line(tool.description, LONGEST_LINE),
            tool=tool,
            sign=self._sign,
        )

    def _sign(self, operation: Operation) -> Signature:
        surface = SchemaProperties(_schema(operation.tool))
        taken = read(surface)
        if operation.category is Category.UPDATE:
            settings = self.settings(operation.canonical)
            taken = list(arranged(taken, settings.identifiers))
        return sign(taken, operation.category, aliases=self._config.aliases, open=surface.open)


def _sign_native(operation: Operation) -> Signature:
    native = operation.native
    assert native is not None
    return sign(native.parameters, operation.category, native=native)


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
    return len(properties) or len(SchemaProperties(_schema(tool)).properties)
