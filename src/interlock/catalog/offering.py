"""What one upstream offers, read once from its list and made ready to be merged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from interlock.catalog import names
from interlock.catalog.definitions import SetAside, Wanted, sift
from interlock.catalog.effects import Effect, classify
from interlock.config import ServerConfig
from interlock.protocol.headers import HeaderParam
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value


class Tool:
    """One tool: where it leads, what it does to the world, and how it reads in a list.

    Immutable but for `validator`, which the validation stage compiles on the first call.
    """

    __slots__ = (
        "canonical",
        "description",
        "effect",
        "effect_word",
        "header_params",
        "listed",
        "repeatable",
        "safe_name",
        "segment",
        "transparent_name",
        "upstream",
        "upstream_name",
        "upstream_name_json",
        "validator",
    )

    def __init__(
        self,
        *,
        upstream: str,
        segment: str,
        upstream_name: str,
        canonical: str,
        safe_name: str,
        transparent_name: str | None,
        description: str,
        effect: Effect,
        params: tuple[HeaderParam, ...],
        listed: bytes,
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.upstream_name = upstream_name
        self.upstream_name_json = encode_value(upstream_name)
        self.canonical = canonical
        self.safe_name = safe_name
        self.transparent_name = transparent_name
        self.description = description
        self.effect = effect
        self.effect_word = effect.level.word
        self.repeatable = effect.repeatable
        self.header_params = params
        self.listed = listed
        """The definition behind its name: `,"description":…}`."""
        self.validator: Any = None

    def input_schema(self) -> Any:
        """The schema of the arguments, decoded when it is needed."""
        return decode_value(decode_members(b"{" + self.listed[1:])["inputSchema"])

    def shown_as(self, style: str) -> str:
        """The name that a client with this name style sees."""
        if self.transparent_name is not None:
            if style == names.SAFE and not names.is_safe(self.transparent_name):
                return self.safe_name
            return self.transparent_name
        return self.safe_name if style == names.SAFE else self.canonical


class Offering:
    """Everything one upstream offers, in the order in which it is listed."""

    __slots__ = ("segment", "set_aside", "tools", "upstream")

    def __init__(
        self, upstream: str, segment: str, tools: tuple[Tool, ...], set_aside: tuple[SetAside, ...]
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.tools = tools
        self.set_aside = set_aside


def read_offering(
    key: str,
    server: ServerConfig,
    definitions: Iterable[Raw | bytes],
    *,
    root_segment: str | None = None,
    http: bool = False,
) -> Offering:
    """An upstream's raw tool definitions as an offering, filtered and renamed by its config.

    Never raises: whatever an upstream lists, what can be used of it is used.
    """
    segment = server.segment or key
    prefix = f"{root_segment}.{segment}" if root_segment else segment
    wanted, set_aside = sift(definitions, server, http=http)
    tools: list[Tool | None] = [None] * len(wanted)
    leaves = names.Leaves()
    safe_names: set[str] = set()
    bare_names: set[str] = set()
    # Who gets which name must not depend on the order in which the upstream happens to list.
    for place in sorted(range(len(wanted)), key=lambda place: _precedence(wanted[place])):
        definition, members, params, shown = wanted[place]
        own = definition.name
        canonical = f"{prefix}.{leaves.take(shown)}"
        if len(canonical) > names.MAX_CANONICAL:
            set_aside.add(own, f"Its full name is longer than {names.MAX_CANONICAL} characters.")
            continue
        bare = server.expose == "transparent" and shown not in bare_names
        bare_names.add(shown)
        safe_name = names.safe("" if bare else prefix, shown, canonical, safe_names)
        safe_names.add(safe_name)
        description = server.descriptions.get(own)
        if description is not None:
            members["description"] = Raw(encode_value(description))
        tools[place] = Tool(
            upstream=key,
            segment=segment,
            upstream_name=own,
            canonical=canonical,
            safe_name=safe_name,
            transparent_name=shown if bare else None,
            description=definition.description or "" if description is None else description,
            effect=classify(
                own, definition.annotations, server.effects, trusted=server.trust_annotations
            ),
            params=params,
            listed=b"," + encode_members(members)[1:],
        )
    listed = [tool for tool in tools if tool is not None]
    if server.expose != "transparent":
        listed.sort(key=lambda tool: tool.canonical)
    return Offering(key, segment, tuple(listed), set_aside.all())


def _precedence(wanted: Wanted) -> tuple[bool, bool, bool, str]:
    """Who chooses first: the renamed, then those whose name needs no mending, by their own name."""
    shown, own = wanted.shown, wanted.definition.name
    return shown == own, not names.is_lawful(shown), not names.is_safe(shown), own
