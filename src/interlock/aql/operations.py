"""The operation catalog: every tool of a snapshot, and the built-in operations, as AQL shows them.

It is rebuilt with each snapshot, but an operation stays the same object while its tool does. Names
and categories are computed at once, signatures on first use.
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
from interlock.aql.danger import TRUST_LEVELS, Trust
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


# The names of operations and parameters.
#
# A name depends only on its source: not on the order in which servers connect, and not on a
# counter. If two names are equal, a hash of the source distinguishes them, so that no operation
# takes over the name of another server's tool.

SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
"""The form of every public name."""

_CAMEL_CASE: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NON_ALPHANUMERIC: Final = re.compile(r"[^a-z0-9]+")
_SNAKE_CASE_WORDS: Final = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+)*\Z")
_INVALID_CHARACTERS: Final = re.compile(r"[^a-z0-9_-]")
_MAX_SEGMENT_CHARACTERS: Final = 63


def to_snake_case(text: str) -> str:
    """Convert text to lower case with single underscores between words.

    Empty if nothing remains.
    """
    if _SNAKE_CASE_WORDS.match(text):
        return text
    return _NON_ALPHANUMERIC.sub("_", _CAMEL_CASE.sub("_", text).lower()).strip("_")


def short_hash(source: str, size: int = 3) -> str:
    """Return a few stable hex digits for a text."""
    return blake2b(source.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def derive_local_name(canonical: str, upstream_name: str) -> str:
    """Return the last part of a tool's name as an operation name: `createIssue` → `create_issue`.

    The canonical name is in lower case. Where it was derived from the upstream's own name, the own
    name is used, because its capitals separate words.
    """
    leaf = canonical.rpartition(".")[2]
    sanitized = _INVALID_CHARACTERS.sub("_", upstream_name.lower())[:_MAX_SEGMENT_CHARACTERS]
    name = to_snake_case(upstream_name[:_MAX_SEGMENT_CHARACTERS] if sanitized == leaf else leaf)
    return _with_initial_letter(name or f"tool_{short_hash(upstream_name)}")


def full_name(canonical: str, local_name: str) -> str:
    """Return the name of an operation before collisions are resolved: `github_create_issue`."""
    parts = [to_snake_case(segment) for segment in canonical.split(".")[:-1]]
    name = "_".join(part for part in (*parts, local_name) if part)
    # Only the whole name must begin with a letter.
    return _with_initial_letter(name)


def _with_initial_letter(name: str) -> str:
    return name if name[0].isalpha() else f"n_{name}"


def assign_names(
    preferred: Sequence[tuple[str, str, str]],
    reserved: Container[str],
    configured_names: Mapping[str, str],
) -> list[str]:
    """Return unique names for operations, given as (preferred name, canonical name, server).

    Colliding names get a hash. Only a tool whose name is already spelled this way keeps the plain
    name, if all colliding tools belong to one server.

    Args:
        reserved: names of built-in operations.
        configured_names: names from the config, by canonical name.
    """
    indices_by_name: dict[str, list[int]] = {}
    names = []
    for index, (name, canonical, _) in enumerate(preferred):
        name = configured_names.get(canonical, name)
        while name in reserved:
            name += "_tool"
        names.append(name)
        indices_by_name.setdefault(name, []).append(index)
    used_names = set(indices_by_name)
    for name, indices in indices_by_name.items():
        if len(indices) == 1:
            continue
        exact_matches = [index for index in indices if preferred[index][1] in configured_names] or [
            index for index in indices if preferred[index][1].replace(".", "_") == name
        ]
        is_one_server = len({preferred[index][2] for index in indices}) == 1 or (
            bool(exact_matches) and preferred[exact_matches[0]][1] in configured_names
        )
        kept_index = exact_matches[0] if len(exact_matches) == 1 and is_one_server else -1
        for index in sorted(indices, key=lambda index: preferred[index][1]):
            if index != kept_index:
                names[index] = _with_hash(name, preferred[index][1], used_names)
                used_names.add(names[index])
    return names


def _with_hash(name: str, canonical: str, used_names: Container[str]) -> str:
    """Return `name` with a hash of its source.

    The hash is longer in the rare case of a collision.
    """
    for size in range(3, 33):
        candidate = f"{name}_{short_hash(canonical, size)}"
        if candidate not in used_names:
            break
    return candidate


def derive_parameter_names(keys_of_schema: Iterable[str]) -> dict[str, str]:
    """Return public names for the keys of a schema, in the order of the schema.

    A valid name stays unchanged. Other keys are converted, with a number if the name is taken.
    """
    keys = list(keys_of_schema)
    valid_keys = {key for key in keys if SNAKE_CASE.match(key)}
    used_names, names = set(valid_keys), {}
    for key in keys:
        if key in valid_keys:
            names[key] = key
            continue
        name = base = _parameter_name(key)
        number = 2
        while name in used_names:
            name = f"{base}_{number}"
            number += 1
        used_names.add(name)
        names[key] = name
    return names


def _parameter_name(key: str) -> str:
    name = to_snake_case(key)
    if not name:
        return f"p_{short_hash(key)}"
    if key.startswith("_"):
        return f"x_{name}"
    return name if name[0].isalpha() else f"p_{name}"


# Operations: tools of the catalog as AQL shows them, and operations that the node answers itself.


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of an operation."""

    name: str
    """The name in snake_case, as AQL shows it."""
    upstream_name: str
    """The name that the upstream uses."""
    type: str
    required: bool
    schema: dict[str, Any]
    description: str = ""
    in_input: bool = False
    """True if the parameter belongs into the `input` of an UPDATE."""
    sensitive: bool = False
    deprecated: str = ""


class Signature(msgspec.Struct, frozen=True):
    """The parameters of an operation."""

    parameters: tuple[Parameter, ...]
    by_name: dict[str, Parameter]
    aliases: dict[str, str]
    """Other accepted spellings → the name."""
    required: frozenset[str]
    names: frozenset[str]
    is_unchanged: bool
    """True if names and structure equal those of the tool, so that the bytes pass unchanged."""
    features: frozenset[str]
    """Options that are accepted beside the parameters without an underscore, such as `fields`."""
    open: bool = False
    """True if the tool accepts parameters that its schema does not name."""


class BuiltinOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the node answers itself. Its tool in the catalog is generated from it."""

    name: str
    category: Category
    effect: str
    """The name of an `EffectLevel`."""
    description: str
    answer: Callable[[Any], Any]
    """Takes an `AqlRequest`; returns data, a `BuiltinResponse`, or an awaitable of either. Raises
    AqlError."""
    parameters: tuple[Parameter, ...] = ()
    returns: str = "object"
    return_fields: tuple[tuple[str, str, str], ...] = ()
    """The fields of the returned data: name, type and description."""
    free: bool = False
    """True if it needs no more rights than a list: it checks the caller's identity itself."""
    lifecycle: bool = False
    listed: Callable[[], bool] | None = None
    """Returns True if lists and searches show it now. None: always."""
    example: dict[str, Any] = {}


class Operation:
    """An operation. It is the same object while its tool is the same, and compared by identity."""

    __slots__ = (
        "_build_signature",
        "_signature",
        "builtin",
        "canonical",
        "category",
        "confidence",
        "danger",
        "description",
        "local_name",
        "name",
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
        local_name: str,
        canonical: str,
        server: str,
        category: Category,
        danger: Danger,
        tool: Tool,
        build_signature: Callable[[Operation], Signature],
        reasons: tuple[str, ...] = (),
        confidence: str = "high",
        needs_review: bool = False,
        origins: dict[str, str] | None = None,
        description: str = "",
        builtin: BuiltinOperation | None = None,
    ) -> None:
        """
        Args:
            build_signature: builds the signature on first use.
        """
        self.name = name
        self.local_name = local_name
        """The last segment of the tool's name, in snake_case."""
        self.canonical = canonical
        self.server = server
        self.category = category
        self.danger = danger
        self.reasons = reasons
        self.confidence = confidence
        self.needs_review = needs_review
        self.origins = origins or {}
        """The source of inferred values: `category` → `override`, `annotations`, `verb`, …"""
        self.description = description
        self.tool = tool
        self.builtin = builtin
        self._build_signature = build_signature
        self._signature: Signature | None = None

    @property
    def signature(self) -> Signature:
        signature = self._signature
        if signature is None:
            signature = self._signature = self._build_signature(self)
        return signature

    def __repr__(self) -> str:
        return f"Operation({self.name}, {self.category.value})"


OperationFinder = Callable[[str, OperationView], Operation | None]
"""Finds an operation by name in a view."""


class OperationCatalog(Protocol):
    """All operations of one snapshot of the catalog."""

    number: int
    """A number that differs between snapshots."""

    def find(self, name: str) -> Operation | None: ...

    def for_tool(self, tool: Tool) -> Operation: ...

    def all(self) -> Sequence[Operation]: ...

    def find_similar(
        self, name: str, limit: int = 5, sees: Callable[[Tool], bool] | None = None
    ) -> list[str]:
        """Return similar operation names, most similar first.

        Args:
            sees: returns True for the tools that the caller sees. None: all tools.
        """


# The parameters of an operation, read from its tool's schema, for checks, translation and
# introspection. Validation still uses the schema itself.

ANY: Final = "any"
TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", ANY})
INPUT: Final = "input"
MAX_PARAMETERS: Final = 1_000
"""Maximum number of parameters of one tool. A schema with more is a mistake or an attack."""
MAX_PARAMETER_DESCRIPTION: Final = 300
"""Maximum length of a parameter's description in characters."""

_MAX_DEPTH: Final = 16
_MAX_PARTS: Final = 500
"""Maximum number of followed alternatives. References may be circular."""
_BLANK: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+"
)
_SECRET: Final = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|pwd|secret|api_?key|apikey|private_key|access_key"
    r"|token|credential|credentials|pin_code|cvv|ssn)(?:$|_)"
)
_NOT_SECRET: Final = re.compile(r"(?:^|_)(?:max|page|next|confirmation|num|count|cursor)_|_tokens$")


def one_line(text: str, limit: int) -> str:
    """Return a server's text on one line, without invisible characters, shortened to `limit`."""
    # Limit the work for texts of any length.
    text = _BLANK.sub(" ", text[: limit * 4]).strip()
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def is_secret(name: str) -> bool:
    """Return whether a parameter name suggests a secret."""
    return _SECRET.search(name) is not None and _NOT_SECRET.search(name) is None


class SchemaProperties:
    """The top level of a schema: its properties, the required ones, and whether others are
    accepted.

    References and alternatives are followed as far as the result is unambiguous.
    """

    __slots__ = ("_is_closed", "_remaining_parts", "open", "properties", "required", "root")

    def __init__(self, schema: Any) -> None:
        self.root: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.properties: dict[str, Any] = {}
        self.open = False
        self._remaining_parts = _MAX_PARTS
        self._is_closed = False
        self.required: set[str] = self._read(self.root, 0)
        if not self.properties and not self._is_closed:
            # The schema names no parameter and forbids none, so any parameter is accepted.
            self.open = True

    def _read(self, schema: dict[str, Any], depth: int) -> set[str]:
        """Collect the properties of `schema`. Returns the required ones."""
        schema = self.resolve(schema)
        self._remaining_parts -= 1
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for key, value in properties.items():
                if len(self.properties) >= MAX_PARAMETERS and key not in self.properties:
                    break
                self.properties.setdefault(key, value)
        additional = schema.get("additionalProperties")
        if additional is True or (isinstance(additional, dict)) or schema.get("patternProperties"):
            self.open = True
        if additional is False or schema.get("unevaluatedProperties") is False:
            self._is_closed = True
        required_keys = schema.get("required")
        required = (
            {key for key in required_keys if isinstance(key, str)}
            if isinstance(required_keys, list)
            else set()
        )
        if depth < _MAX_DEPTH:
            for part in _parts(schema, "allOf"):
                if self._remaining_parts > 0:
                    required |= self._read(part, depth + 1)
            for keyword in ("oneOf", "anyOf"):
                branches = [
                    self._read(part, depth + 1)
                    for part in _parts(schema, keyword)
                    if self._remaining_parts > 0
                ]
                if branches:
                    required |= set.intersection(*branches)
        return required & self.properties.keys() if depth == 0 else required

    def resolve(self, schema: Any) -> dict[str, Any]:
        """Resolve a reference within this schema.

        A circular or broken reference resolves to `{}`.
        """
        followed_references = 0
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            target = self._find(schema["$ref"])
            followed_references += 1
            if target is None or followed_references > _MAX_DEPTH:
                return {}
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**target, **siblings} if siblings else target
        return schema if isinstance(schema, dict) else {}

    def _find(self, reference: str) -> dict[str, Any] | None:
        if not reference.startswith("#"):
            return None
        target = resolve_pointer(self.root, reference[1:])
        return target if isinstance(target, dict) else None


def _parts(schema: dict[str, Any], keyword: str) -> list[dict[str, Any]]:
    parts = schema.get(keyword)
    return (
        [part for part in parts if isinstance(part, dict)][:MAX_PARAMETERS]
        if isinstance(parts, list)
        else []
    )


def type_of(schema: Any, depth: int = 0) -> str:
    """Return the type of a schema as one word."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    declared = schema.get("type")
    if isinstance(declared, list):
        non_null = [kind for kind in declared if kind != "null"]
        declared = non_null[0] if len(non_null) == 1 else None
    if isinstance(declared, str):
        return declared if declared in TYPES else ANY
    if "properties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        kinds = {_kind(value) for value in values if value is not None}
        return kinds.pop() if len(kinds) == 1 else ANY
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
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


def read_parameters(properties: SchemaProperties) -> list[Parameter]:
    """Return the parameters of a tool, in the order of its schema."""
    result = []
    for upstream_name, name in derive_parameter_names(properties.properties).items():
        schema = properties.resolve(properties.properties[upstream_name])
        description = schema.get("description") or schema.get("title")
        result.append(
            Parameter(
                name=name,
                upstream_name=upstream_name,
                type=type_of(schema),
                required=upstream_name in properties.required,
                schema=schema,
                description=one_line(description, MAX_PARAMETER_DESCRIPTION)
                if isinstance(description, str)
                else "",
                sensitive=is_secret(name)
                or schema.get("writeOnly") is True
                or schema.get("format") == "password",
                deprecated="deprecated" if schema.get("deprecated") is True else "",
            )
        )
    return result


# Language features beside the parameters, each defined once.

FEATURES: Final[dict[str, Parameter]] = {
    parameter.name: parameter
    for parameter in (
        Parameter(
            "fields", "fields", "array", False,
            {"type": "array", "items": {"type": "string"}},
            "Return only these fields, such as id or owner.name.",
        ),
        Parameter(
            "preset", "preset", "string", False,
            {"type": "string", "enum": ["minimal", "standard", "full"]},
            "How much of the result to return, instead of fields.",
        ),
        Parameter(
            "dry_run", "dry_run", "boolean", False,
            {"type": "boolean", "default": False},
            "Describe the effect without executing.",
        ),
        Parameter(
            "confirmation_token", "confirmation_token", "string", False,
            {"type": "string"},
            "From CONFIRMATION_REQUIRED, to collect the result of an approved operation.",
        ),
    )
}  # fmt: skip
FIRST: Final = Parameter(
    "first", "first", "integer", False,
    {"type": "integer", "minimum": 1},
    "Maximum number of items: 20 by default, at most 100.",
)  # fmt: skip
AFTER: Final = Parameter(
    "after", "after", "string", False, {"type": "string", "maxLength": 1024},
    "The endCursor of the previous page.",
)  # fmt: skip
"""A parameter of all built-in list operations."""
_READ_FEATURES: Final = frozenset({"fields", "preset"})
_WRITE_FEATURES: Final = frozenset({"dry_run", "confirmation_token"})
_LIFECYCLE_FEATURES: Final = frozenset({"confirmation_token"})


def select_features(
    category: Category, names: Iterable[str], builtin: BuiltinOperation | None
) -> frozenset[str]:
    """Return the language features of an operation that do not clash with its parameter names."""
    if category is Category.READ:
        features = _READ_FEATURES
    elif builtin is not None and builtin.free:
        features = frozenset()
    elif builtin is not None and builtin.lifecycle:
        # It may need approval, but a dry run would return no information.
        features = _LIFECYCLE_FEATURES
    else:
        features = _WRITE_FEATURES
    return features.difference(names)


def build_signature(
    parameters: Sequence[Parameter],
    category: Category,
    *,
    builtin: BuiltinOperation | None = None,
    aliases: bool = True,
    open: bool = False,
) -> Signature:
    """Build the signature of an operation."""
    by_name = {parameter.name: parameter for parameter in parameters}
    nested = any(parameter.in_input for parameter in parameters)
    alternative_names: dict[str, str] = {}
    if aliases:
        alternative_names = {
            parameter.upstream_name: parameter.name
            for parameter in parameters
            if parameter.upstream_name != parameter.name
            and parameter.upstream_name not in by_name
            and not parameter.upstream_name.startswith("_")
        }
    outer = [parameter for parameter in parameters if not parameter.in_input]
    names = {parameter.name for parameter in outer}
    required = {parameter.name for parameter in outer if parameter.required}
    if nested:
        names.add(INPUT)
        required.add(INPUT)
    return Signature(
        parameters=tuple(parameters),
        by_name=by_name,
        aliases=alternative_names,
        required=frozenset(required),
        names=frozenset(names),
        is_unchanged=not nested
        and all(parameter.upstream_name == parameter.name for parameter in parameters),
        features=select_features(category, (*names, *alternative_names), builtin),
        open=open,
    )


def input_schema(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Return the input schema of the tool of a built-in operation."""
    parameter_list = list(parameters)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            parameter.upstream_name: {
                **parameter.schema,
                **({"description": parameter.description} if parameter.description else {}),
            }
            for parameter in parameter_list
        },
        "additionalProperties": False,
    }
    required = [parameter.upstream_name for parameter in parameter_list if parameter.required]
    if required:
        schema["required"] = required
    return schema


# The shape of an UPDATE: identifiers of the resource stand beside `input`, changes in `input`.
#
# Tools of servers take flat arguments. The config names the identifiers, otherwise their names
# suggest them.

_IDENTIFIER_NAME: Final = re.compile(
    r"(?:.*_)?(?:id|uuid|name|path|number|key)\Z|(?:owner|repo|uri|url|ref|slug)\Z"
)
MIN_UPDATE_PARAMETERS: Final = 2
"""A tool with fewer parameters cannot be an UPDATE."""


def mark_input_parameters(
    parameters: Sequence[Parameter], identifiers: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """Mark the parameters of an UPDATE that belong into `input`.

    Args:
        identifiers: the identifiers from the config, by upstream or public name.
    """
    if identifiers:
        identifier_names = set(identifiers)
        outer_names = {
            parameter.name
            for parameter in parameters
            if parameter.name in identifier_names or parameter.upstream_name in identifier_names
        }
    else:
        outer_names = {
            parameter.name
            for parameter in parameters
            if parameter.required and _IDENTIFIER_NAME.match(parameter.name)
        }
    outer_names.discard(INPUT)
    if len(outer_names) == len(parameters) or not outer_names:
        # Without changes or identifiers, the first required parameter is the identifier.
        first = next(
            (
                parameter
                for parameter in parameters
                if parameter.required and parameter.name != INPUT
            ),
            None,
        )
        outer_names = set() if first is None else {first.name}
    return tuple(
        parameter if parameter.name in outer_names else replace(parameter, in_input=True)
        for parameter in parameters
    )


# The category of a tool, and the confidence in it.
#
# The config decides, then the tool's effect, then the verb in its name. Unknown verbs mean EXECUTE.
# A category determines how an operation is listed and called. It never changes an effect, and so no
# decision of the policy.
#
# READ is for tools that only read. Without a read-only effect, the verb must be unambiguous, the
# name must contain no word of change, and the server must not declare that the tool changes
# something.


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
_NOUN_LIKE: Final = _words("""
    comment record log order test link tag label type process email sms dm rate schedule draft book
    call store handle charge sign print play head tail tree copy release new fill focus stage share
    vote mark history status info stat what which is has details monitor filter view query scan
    trace snapshot screenshot""")
"""Words that are verbs at the beginning of a name, unless another verb ends the name. Elsewhere
they are usually nouns."""
_MODIFIERS: Final = _words("batch bulk multi mass force safe quick api")
"""Words in front of verbs."""
_CHANGE_VERBS: Final = _words("""
    delete remove purge unregister clear drop destroy erase wipe truncate uninstall revoke archive
    update edit set rename move patch merge modify change replace put write overwrite assign append
    create add upload register import insert upsert save""")
"""Unambiguous verbs of change: a read-only declaration of such a tool is not trusted."""
_AMBIGUOUS_READ_VERBS: Final = _words("""
    query research extract load snapshot monitor select filter scan trace""")
"""Reading verbs that many tools use otherwise: `query` may run anything."""
_CONJUNCTIONS: Final = _words("and then or plus")
"""Conjunctions. A verb follows, even if the word could be a noun."""
_CATEGORY_OF_WORD: Final = {
    word: category for category, words in _WORDS.items() for word in _words(words)
}

_NOUN_PHRASES: Final = frozenset(
    {("pull", "request"), ("merge", "request"), ("check", "run"), ("check", "suite")}
)
"""Noun phrases that begin like a verb."""
_WRITE_WORDS: Final = (
    frozenset(word for word, category in _CATEGORY_OF_WORD.items() if category is not Category.READ)
    - _NOUN_LIKE
    - _words("commit build run fork post import")
)
"""Words that do not occur in names of read-only tools."""
_ENDPOINT_VERBS: Final = _words(
    "discover query manage operate authorize administer observe act control"
)
"""Verbs that name endpoints and no tools."""
EXTERNAL: Final = _words("""
    send post publish notify deploy pay submit dispatch broadcast email charge refund purchase buy
    order tweet dm sms""")
"""Verbs with an effect outside of the system: no annotation makes them harmless."""
_RISK_ORDER: Final = {
    Category.READ: 0, Category.CREATE: 1, Category.UPDATE: 2, Category.EXECUTE: 3,
    Category.DELETE: 4,
}  # fmt: skip

HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"


class CategoryChoice(NamedTuple):
    """A category, its confidence and its reason."""

    category: Category
    confidence: str
    origin: str
    """`override`, `effects`, `annotations`, `verb` or `unknown`."""
    needs_review: bool = False
    reason: str = ""


class NameVerb(NamedTuple):
    """The verb in a tool's name."""

    category: Category
    word: str
    is_certain: bool
    """True if the verb is where verbs usually are."""


def category_of_http_method(method: str) -> Category:
    """Return the category of an HTTP method."""
    return {
        "GET": Category.READ,
        "HEAD": Category.READ,
        "OPTIONS": Category.READ,
        "PUT": Category.UPDATE,
        "PATCH": Category.UPDATE,
        "DELETE": Category.DELETE,
    }.get(method.upper(), Category.CREATE if method.upper() == "POST" else Category.EXECUTE)


def find_verb(local_name: str, segment: str = "") -> NameVerb | None:
    """Return the verb in the name of an operation, ignoring its server's name. None: no known verb.

    The first word counts, else the last one, else a word between them. Of two joined words the
    riskier one counts, except that "create or …" is CREATE.
    """
    tokens = _words_without_server(local_name, segment)
    while len(tokens) > 1 and tokens[0] in _MODIFIERS:
        tokens = tokens[1:]
    last = (
        None if tokens[-1] in _NOUN_LIKE or len(tokens) == 1 else _CATEGORY_OF_WORD.get(tokens[-1])
    )
    first_two = (tokens[0], tokens[1].removesuffix("s") if len(tokens) > 1 else "")
    first = None if first_two in _NOUN_PHRASES else _CATEGORY_OF_WORD.get(tokens[0])
    if first is not None and not (last is not None and tokens[0] in _NOUN_LIKE):
        if len(tokens) > 2 and tokens[1] in ("or", "and"):
            second = _CATEGORY_OF_WORD.get(tokens[2])
            if second is not None:
                return _joined_verb(first, second, tokens)
        if tokens[0] == "check" and len(tokens) > 1 and tokens[1] in ("in", "out"):
            return NameVerb(Category.UPDATE, f"check_{tokens[1]}", True)
        return NameVerb(first, tokens[0], True)
    if last is not None:
        return NameVerb(last, tokens[-1], True)
    verb = _riskiest_verb([word for word in tokens[1:-1] if word not in _NOUN_LIKE])
    if verb is None:
        # A noun-like word in the middle is not enough for READ.
        verb = _riskiest_verb(
            [word for word in tokens[1:] if _CATEGORY_OF_WORD.get(word) is not Category.READ]
        )
    return verb


def _words_without_server(local_name: str, segment: str) -> list[str]:
    """Return the words of a name without the server's name in front."""
    tokens = local_name.split("_")
    server_words = segment.replace("-", "_").split("_")
    if len(tokens) > len(server_words) and tokens[: len(server_words)] == server_words:
        return tokens[len(server_words) :]
    return tokens


def _riskiest_verb(words: list[str]) -> NameVerb | None:
    """Return the riskiest verb of words at unusual positions."""
    candidates = [
        (_RISK_ORDER[_CATEGORY_OF_WORD[word]], word) for word in words if word in _CATEGORY_OF_WORD
    ]
    if not candidates:
        return None
    word = max(candidates)[1]
    return NameVerb(_CATEGORY_OF_WORD[word], word, False)


def _joined_verb(first: Category, second: Category, tokens: list[str]) -> NameVerb:
    words = "_".join(tokens[:3])
    pair = {first, second}
    if tokens[1] == "or" and Category.CREATE in pair and Category.DELETE not in pair:
        return NameVerb(Category.CREATE, words, True)
    return NameVerb(max(first, second, key=_RISK_ORDER.__getitem__), words, True)


def _find_change_word(tokens: list[str], reads: str) -> tuple[str, Category] | None:
    """Return a word of change in a name with a reading verb, and the resulting category."""
    change_word: tuple[str, Category] | None = None
    for index, word in enumerate(tokens):
        category = _CATEGORY_OF_WORD.get(word, Category.READ)
        following = "" if index + 1 == len(tokens) else tokens[index + 1].removesuffix("s")
        if category is Category.READ or (word, following) in _NOUN_PHRASES:
            continue
        if index and tokens[index - 1] in _CONJUNCTIONS:
            return word, category
        if change_word is None and word in _WRITE_WORDS:
            # Behind the reading verb the word may be a noun, so the category is uncertain.
            change_word = word, category if reads in tokens[index:] else Category.EXECUTE
    return change_word


def classify(
    local_name: str,
    effect: Effect,
    override: Category | None = None,
    segment: str = "",
    *,
    changes: bool = False,
) -> CategoryChoice:
    """Return the category of a tool by its name and effect.

    Args:
        changes: True if the server declares that the tool does not only read.
    """
    if override is not None:
        return CategoryChoice(override, HIGH, "override", reason="set in the config")
    verb = find_verb(local_name, segment)
    level, source = effect.level, effect.source
    if level is EffectLevel.READ_ONLY:
        return _classify_read_only(verb, source)
    if verb is None:
        if level is EffectLevel.ADDITIVE and source == "config":
            return CategoryChoice(
                Category.CREATE, MEDIUM, "effects", reason="additive according to the config"
            )
        return CategoryChoice(
            Category.EXECUTE, LOW, "unknown", True, "the name contains no known verb"
        )
    confidence = HIGH if verb.is_certain else MEDIUM
    reason = f"the word {verb.word}"
    if level is EffectLevel.IRREVERSIBLE:
        if verb.category is Category.READ:
            # The name and the effect contradict each other. Irreversible operations are never
            # listed as READ.
            return CategoryChoice(
                Category.EXECUTE, MEDIUM, "annotations", True,
                f"{reason}, although the effect is irreversible",
            )  # fmt: skip
        if verb.category is Category.CREATE and source == "annotations":
            return CategoryChoice(
                Category.UPDATE, MEDIUM, "annotations", reason=f"{reason}, and may overwrite"
            )
    if verb.category is Category.READ:
        return _classify_by_name(local_name, segment, verb, changes or source == "config")
    if verb.word in EXTERNAL:
        reason += ", which has an external effect"
    elif "_or_" in verb.word or verb.word == "upsert":
        reason += ": the resource may not exist yet"
    return CategoryChoice(verb.category, confidence, "verb", reason=reason)


def _classify_by_name(
    local_name: str, segment: str, verb: NameVerb, changes: bool
) -> CategoryChoice:
    """Return the category of a tool with a reading verb and no read-only effect."""
    reason = f"the word {verb.word}"
    if changes:
        reason += ", although the tool is declared to change something"
        return CategoryChoice(Category.EXECUTE, MEDIUM, "annotations", True, reason)
    word = _find_change_word(_words_without_server(local_name, segment), verb.word)
    if word is not None:
        return CategoryChoice(word[1], MEDIUM, "verb", True, f"{reason}, and the word {word[0]}")
    if verb.word in _AMBIGUOUS_READ_VERBS:
        return CategoryChoice(Category.EXECUTE, LOW, "verb", True, f"{reason}, which is ambiguous")
    return CategoryChoice(Category.READ, HIGH if verb.is_certain else MEDIUM, "verb", reason=reason)


def _classify_read_only(verb: NameVerb | None, source: str) -> CategoryChoice:
    """Return the category of a tool with a read-only effect."""
    if source == "config":
        return CategoryChoice(
            Category.READ, HIGH, "effects", reason="read-only according to the config"
        )
    if verb is None or verb.category is Category.READ:
        return CategoryChoice(
            Category.READ, HIGH, "annotations", reason="read-only according to its server"
        )
    has_change_word = any(
        word in _CHANGE_VERBS or word in EXTERNAL for word in verb.word.split("_")
    )
    if not has_change_word or not verb.is_certain:
        return CategoryChoice(
            Category.READ, MEDIUM, "annotations", reason="read-only according to its server"
        )
    return CategoryChoice(
        verb.category, MEDIUM, "verb", True,
        f"the word {verb.word}, although its server declares the tool read-only",
    )  # fmt: skip


def is_action(name: str) -> bool:
    """Return whether an endpoint name contains a verb."""
    return any(word in _CATEGORY_OF_WORD or word in _ENDPOINT_VERBS for word in name.split("_"))


# The trust in each server, and its history.
#
# Trust rises by one level at a time and can fall to any level. A server may only extend its tools:
# after an incompatible change, it is trusted no more than an untested server.

CONFIGURED_TRUST: Final[Trust] = "validated"
"""The trust in servers of the config: an operator chose them."""
REGISTERED_TRUST: Final[Trust] = "generated"
"""The trust in self-registered servers."""
_MAX_CHANGES: Final = 100
"""Maximum number of stored changes per server."""


class TrustChange(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """A change of the trust in a server."""

    from_: Trust
    to: Trust
    at: float
    by: str
    reason: str = ""


class ServerTrust:
    """The trust levels of servers."""

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
            declared: the trust levels from the config, by server.
            registered: returns True for self-registered servers.
            on_change: called when the trust in a server has changed.
        """
        self._registered = registered
        self._wall_clock = wall_clock
        self._declared = dict(declared)
        self._levels: dict[str, Trust] = dict(declared)
        self._history: dict[str, list[TrustChange]] = {}
        self._on_change = on_change

    def __call__(self, server: str) -> Trust:
        level = self._levels.get(server)
        if level is not None:
            return level
        return REGISTERED_TRUST if self._registered(server) else CONFIGURED_TRUST

    def is_declared(self, server: str) -> bool:
        """Return whether the config sets the trust in a server."""
        return server in self._declared

    def configure(self, declared: Mapping[str, Trust]) -> list[str]:
        """Apply the trust levels of the config. Returns a message for each rejected promotion."""
        problems = []
        for server in sorted(self._declared.keys() | declared.keys()):
            if self._declared.get(server) == declared.get(server):
                continue
            level = declared.get(server) or (
                REGISTERED_TRUST if self._registered(server) else CONFIGURED_TRUST
            )
            problem = self.change(server, level, "config")
            if problem is not None:
                problems.append(problem)
        self._declared = dict(declared)
        return problems

    def change(self, server: str, to: Trust, by: str, reason: str = "") -> str | None:
        """Promote a server by one level, or demote it to any level. Returns why a promotion is
        rejected.
        """
        now = self(server)
        if to == now:
            return None
        if TRUST_LEVELS.index(to) > TRUST_LEVELS.index(now) + 1:
            following = TRUST_LEVELS[TRUST_LEVELS.index(now) + 1]
            return (
                f"The trust in server '{server}' is {now}. It can rise by one level only: set it "
                f"to {following} before {to}."
            )
        self._levels[server] = to
        self._on_change()
        history = self._history.setdefault(server, [])
        history.append(TrustChange(now, to, self._wall_clock(), by, reason))
        del history[:-_MAX_CHANGES]
        return None

    def demote(self, server: str, operation: str, change: str) -> None:
        """Lower the trust in a server after an incompatible change of an operation."""
        if TRUST_LEVELS.index(self(server)) > TRUST_LEVELS.index(REGISTERED_TRUST):
            self.change(server, REGISTERED_TRUST, "node", f"{operation}: {change}")

    def history(self, server: str) -> list[dict[str, Any]]:
        """Return the changes of trust in a server, oldest first."""
        return [msgspec.to_builtins(change) for change in self._history.get(server, ())]


def find_breaking_change(before: Signature, now: Signature) -> str:
    """Return the first incompatible change between two signatures. Empty: they are compatible."""
    for parameter in before.parameters:
        other = now.by_name.get(parameter.name)
        if other is None:
            if not now.open:
                return f"parameter {parameter.name} was removed"
        elif other.type != parameter.type and other.type != "any":
            return (
                f"parameter {parameter.name} changed its type from {parameter.type} to {other.type}"
            )
        elif other.in_input != parameter.in_input:
            return f"parameter {parameter.name} moved into or out of input"
    parameters_before = {parameter.name: parameter for parameter in before.parameters}
    for parameter in now.parameters:
        if parameter.required and (
            parameter.name not in parameters_before
            or not parameters_before[parameter.name].required
        ):
            return f"parameter {parameter.name} became required"
    return ""


HIDDEN_OPERATIONS: Final = frozenset(
    {"batch", "start_execution", "preview", "unblock", "continue_quota"}
)
"""Built-in tools that are steps of the language and no operations. They cannot be called by
name."""
MAX_LIST_DESCRIPTION: Final = 100
"""Maximum length of a description in a list, in characters."""

_NO_SETTINGS: Final = OperationConfig()
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


class _AnnotatedTool(msgspec.Struct):
    annotations: Annotations | None = None


_HINT_MARK: Final = b'Hint"'
_decode_annotations = msgspec.json.Decoder(_AnnotatedTool).decode
_MAX_COMPARED: Final = 64
"""Maximum number of names that are compared in detail for a similar name."""


class OperationSnapshot:
    """The operations of one snapshot, as an `OperationCatalog`."""

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
        self._by_name = {
            operation.name: operation for operation in by_tool.values() if operation.name
        }
        for operation in hidden.values():
            self._by_name.pop(operation.name, None)
        builtin = sorted(
            (operation for operation in self._by_name.values() if operation.builtin is not None),
            key=lambda operation: (operation.name != "introspect", operation.name),
        )
        from_tools = (
            by_tool[tool] for tool in snapshot.plain_tools if tool.upstream != BUILTIN_KEY
        )
        self._listed: tuple[Operation, ...] = (*builtin, *from_tools)
        self._locals: dict[str, dict[str, Operation]] = {}
        self._words: dict[str, list[Operation]] | None = None

    def find(self, name: str) -> Operation | None:
        """Return the operation of this name, listed or not."""
        return self._by_name.get(name)

    def find_builtin(self, name: str) -> Operation | None:
        """Return a built-in operation, hidden ones included."""
        operation = self._hidden.get(name) or self._by_name.get(name)
        return operation if operation is not None and operation.builtin is not None else None

    def for_tool(self, tool: Tool) -> Operation:
        return self._by_tool[tool]

    def all(self) -> Sequence[Operation]:
        """Return the listed operations: built-in ones first, then tools in order."""
        return self._listed

    # -- views of one namespace use local names

    def find_in(self, name: str, operation_view: OperationView) -> Operation | None:
        """Return the operation of this name in a view.

        In a view of one namespace, local names are valid too, and operations of other servers are
        not found.
        """
        if not operation_view.namespace:
            return self._by_name.get(name)
        operation = self._operations_by_local_name(operation_view.namespace).get(
            name
        ) or self._by_name.get(name)
        if operation is None or not (
            operation.builtin or self.is_within(operation, operation_view.namespace)
        ):
            return None
        return operation

    def name_in(self, operation: Operation, operation_view: OperationView) -> str:
        """Return the name of an operation in a view."""
        if not operation_view.namespace or operation.builtin is not None:
            return operation.name
        operation_of_local_name = self._operations_by_local_name(operation_view.namespace).get(
            operation.local_name
        )
        return operation.local_name if operation_of_local_name is operation else operation.name

    @staticmethod
    def is_within(operation: Operation, namespace: str) -> bool:
        """Return whether an operation belongs to a namespace: the segment of a server, or a path of
        segments.
        """
        if not namespace:
            return True
        if operation.builtin is not None:
            return False
        tool = operation.tool
        return tool.segment == namespace or tool.canonical.startswith(f"{namespace}.")

    def _operations_by_local_name(self, namespace: str) -> dict[str, Operation]:
        by_local_name = self._locals.get(namespace)
        if by_local_name is None:
            by_local_name, ambiguous = {}, set()
            for operation in self._by_name.values():
                if self.is_within(operation, namespace):
                    if (
                        operation.local_name in by_local_name
                        or operation.local_name in RESERVED_OPERATIONS
                        or operation.local_name in self._by_name
                    ):
                        ambiguous.add(operation.local_name)
                    by_local_name[operation.local_name] = operation
            for name in ambiguous:
                del by_local_name[name]
            if len(self._locals) < _MAX_COMPARED:
                self._locals[namespace] = by_local_name
        return by_local_name

    # -- similar names

    def find_similar(
        self, name: str, limit: int = 5, sees: Callable[[Tool], bool] | None = None
    ) -> list[str]:
        """Return similar operation names, most similar first.

        A tool's own name, in any form that the catalog knows, leads to its operation.

        Args:
            sees: returns True for the tools that the caller sees. None: all tools.
        """
        tool = self.snapshot.by_name.get(name)
        exact_match = self._by_tool.get(tool) if tool is not None else None
        snake_name = to_snake_case(name[:200])
        matches = [] if exact_match is None else [exact_match]
        matches += [
            operation for operation in self._find_alike(snake_name) if operation is not exact_match
        ]
        return [
            operation.name
            for operation in matches
            if operation.name in self._by_name
            and (operation.builtin or sees is None or sees(operation.tool))
        ][:limit]

    def _find_alike(self, name: str) -> list[Operation]:
        """Return operations with a similar name: by shared words, or by similar words."""
        if not name:
            return []
        words = self._words
        if words is None:
            words = self._words = {}
            for operation in self._listed:
                for word in operation.name.split("_"):
                    words.setdefault(word, []).append(operation)
        scores: dict[Operation, float] = {}
        for word in set(name.split("_")):
            exact = words.get(word)
            matches = [exact] if exact else [words[like] for like in _similar_words(word, words)]
            for matching_operations in matches:
                # A word of many names counts less.
                weight = (1.0 if exact else 0.7) / (1 + len(matching_operations) / 8)
                for operation in matching_operations:
                    scores[operation] = scores.get(operation, 0.0) + weight
        candidates = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0].name))[
            :_MAX_COMPARED
        ]
        matcher = SequenceMatcher(b=name, autojunk=False)
        scored = []
        for operation, weight in candidates:
            matcher.set_seq1(operation.name)
            score = weight + 2 * matcher.ratio() + (operation.local_name == name)
            scored.append((-score, operation.name, operation))
        return [
            operation
            for score, _, operation in sorted(scored, key=lambda entry: entry[:2])
            if score < -0.8
        ]


def _similar_words(word: str, words: Mapping[str, object]) -> list[str]:
    """Return words with a similar spelling."""
    if len(word) < 3:
        return []
    matcher = SequenceMatcher(b=word, autojunk=False)
    similar = []
    for other_word in words:
        if abs(len(other_word) - len(word)) <= 3 and (
            other_word[0] == word[0] or other_word[-1] == word[-1]
        ):
            matcher.set_seq1(other_word)
            if matcher.quick_ratio() > 0.7 and matcher.ratio() > 0.7:
                similar.append(other_word)
    return similar[:8]


class OperationCatalogBuilder:
    """Builds the operation catalog of each snapshot, and reuses unchanged operations."""

    def __init__(
        self,
        config: AqlConfig,
        builtin_operations: Iterable[BuiltinOperation] = (),
        *,
        on_break: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """
        Args:
            on_break: called with (server, canonical name, change) after an incompatible change of a
                tool.
        """
        self._config = config
        self._builtin_operations = {operation.name: operation for operation in builtin_operations}
        self._operations_by_tool: dict[Tool, Operation] = {}
        self._current: OperationSnapshot | None = None
        self._number = 0
        self._patterns: list[tuple[str, OperationConfig]] = []
        self._on_break = on_break
        self.configure(config)

    def configure(
        self, config: AqlConfig, builtin_operations: Iterable[BuiltinOperation] | None = None
    ) -> None:
        """Apply the config."""
        self._config = config
        if builtin_operations is not None:
            self._builtin_operations = {
                operation.name: operation for operation in builtin_operations
            }
        self._patterns = list(config.operations.items())
        self._operations_by_tool = {}
        self._current = None

    @property
    def builtin_operations(self) -> Mapping[str, BuiltinOperation]:
        """The built-in operations by name."""
        return self._builtin_operations

    def settings(self, canonical: str) -> OperationConfig:
        """Return the config of a tool. The first matching glob applies."""
        for glob, settings in self._patterns:
            if matches_glob(glob, canonical):
                return settings
        return _NO_SETTINGS

    def build(self, snapshot: Snapshot) -> OperationSnapshot:
        """Return the operation catalog of a snapshot."""
        current = self._current
        if current is None or current.snapshot is not snapshot:
            current = self._current = self._build(snapshot)
        return current

    def _build(self, snapshot: Snapshot) -> OperationSnapshot:
        previous, by_tool = self._operations_by_tool, {}
        hidden: dict[str, Operation] = {}
        preferred: list[tuple[str, str, str]] = []
        tools: list[tuple[Tool, str]] = []
        configured_names: dict[str, str] = {}
        # The order of tools must not affect their names.
        for tool in dict.fromkeys(snapshot.by_name.values()):
            if tool.upstream == BUILTIN_KEY:
                builtin = self._builtin_operations.get(tool.upstream_name)
                if builtin is None:
                    # A hidden step of the language: it has a decision and no name.
                    by_tool[tool] = previous.get(tool) or self._make_tool_operation(
                        tool, tool.upstream_name, ""
                    )
                    continue
                operation = by_tool[tool] = previous.get(tool) or self._make_builtin(tool, builtin)
                if builtin.name in HIDDEN_OPERATIONS:
                    hidden[builtin.name] = operation
                continue
            local_name = derive_local_name(tool.canonical, tool.upstream_name)
            tools.append((tool, local_name))
            preferred.append((full_name(tool.canonical, local_name), tool.canonical, tool.upstream))
            if self._patterns:
                name = self.settings(tool.canonical).name
                if name is not None:
                    configured_names[tool.canonical] = name
        reserved = RESERVED_OPERATIONS.keys() | self._builtin_operations.keys()
        for (tool, local_name), name in zip(
            tools, assign_names(preferred, reserved, configured_names), strict=True
        ):
            reused = previous.get(tool)
            if reused is None or reused.name != name:
                reused = self._make_tool_operation(tool, local_name, name)
            by_tool[tool] = reused
        if self._on_break is not None and previous:
            self._report_breaking_changes(previous, by_tool)
        self._operations_by_tool = by_tool
        self._number += 1
        return OperationSnapshot(self._number, snapshot, by_tool, hidden)

    def _report_breaking_changes(
        self, before: Mapping[Tool, Operation], now: Mapping[Tool, Operation]
    ) -> None:
        """Report incompatible changes of tools."""
        removed_operations = {
            tool.canonical: operation for tool, operation in before.items() if tool not in now
        }
        if not removed_operations or self._on_break is None:
            return
        for tool, operation in now.items():
            old = removed_operations.get(tool.canonical)
            # Signatures are built only if the definition has changed.
            if (
                old is not None
                and old.server == operation.server
                and old.tool.listed != tool.listed
            ):
                change = find_breaking_change(old.signature, operation.signature)
                if change:
                    self._on_break(operation.server, operation.canonical, change)

    def _make_builtin(self, tool: Tool, builtin: BuiltinOperation) -> Operation:
        level, reasons = danger.classify_danger(builtin.name, builtin.category, tool.effect.level)
        if builtin.free:
            # It makes no changes itself and needs no more rights than a list.
            level, reasons = Danger.SAFE, ()
        return Operation(
            name=builtin.name,
            local_name=builtin.name,
            canonical=tool.canonical,
            server="",
            category=RESERVED_OPERATIONS.get(builtin.name, builtin.category),
            danger=level,
            reasons=reasons,
            origins={"category": "builtin", "danger": "builtin" if builtin.free else "derived"},
            description=builtin.description,
            tool=tool,
            builtin=builtin,
            build_signature=_build_builtin_signature,
        )

    def _make_tool_operation(self, tool: Tool, local_name: str, name: str) -> Operation:
        settings = self.settings(tool.canonical)
        override = None if settings.category is None else Category(settings.category)
        choice = classify(
            local_name, tool.effect, override, tool.segment, changes=_declares_change(tool)
        )
        category = choice.category
        if category is Category.UPDATE and _count_parameters(tool) < MIN_UPDATE_PARAMETERS:
            category = Category.EXECUTE
        declared = None if settings.danger is None else Danger[settings.danger.upper()]
        level, reasons = danger.classify_danger(local_name, category, tool.effect.level, declared)
        return Operation(
            name=name,
            local_name=local_name,
            canonical=tool.canonical,
            server=tool.upstream,
            category=category,
            danger=level,
            reasons=tuple(settings.reasons) or reasons,
            confidence=choice.confidence,
            needs_review=choice.needs_review,
            origins={
                "category": choice.origin,
                "category_reason": choice.reason,
                "danger": "override" if declared is not None else "derived",
                "name": "override" if settings.name else "derived",
            },
            description=one_line(tool.description, MAX_LIST_DESCRIPTION),
            tool=tool,
            build_signature=self._build_signature,
        )

    def _build_signature(self, operation: Operation) -> Signature:
        properties = SchemaProperties(_schema(operation.tool))
        parameters = read_parameters(properties)
        if operation.category is Category.UPDATE:
            settings = self.settings(operation.canonical)
            parameters = list(mark_input_parameters(parameters, settings.identifiers))
        return build_signature(
            parameters, operation.category, aliases=self._config.aliases, open=properties.open
        )


def _build_builtin_signature(operation: Operation) -> Signature:
    builtin = operation.builtin
    assert builtin is not None
    return build_signature(builtin.parameters, operation.category, builtin=builtin)


def _schema(tool: Tool) -> Any:
    try:
        return tool.input_schema()
    except (KeyError, ProtocolError, RecursionError):
        return {}


def _declares_change(tool: Tool) -> bool:
    """Return whether a server declares that a tool does not only read.

    Missing hints do not count.
    """
    if _HINT_MARK not in tool.listed:
        return False
    try:
        hints = _decode_annotations(b"{" + tool.listed[1:]).annotations
    except msgspec.MsgspecError:
        return True
    if hints is None or hints.read_only_hint:
        return False
    return hints.read_only_hint is False or hints.destructive_hint is not None


def _count_parameters(tool: Tool) -> int:
    """Return the number of parameters of a tool."""
    try:
        listed = _decode_members(b"{" + tool.listed[1:])
        properties = _decode_members(
            _decode_members(listed["inputSchema"]).get("properties", b"{}")
        )
    except (KeyError, msgspec.MsgspecError):
        properties = {}
    return len(properties) or len(SchemaProperties(_schema(tool)).properties)
