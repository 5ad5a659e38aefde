"""The sections `parent` and `subservers` of the config: their structs, checks and reference."""

from __future__ import annotations

from typing import Any, Final

from interlock.core.config import quantities
from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.model import Config
from interlock.core.config.own_node import is_own_url
from interlock.core.config.problems import KeyPath, quoted
from interlock.core.config.reader import NodeReader
from interlock.core.config.trust import BudgetConfig
from interlock.protocol.mcpax import MAX_INTERVAL_MS, RESERVED_SEGMENTS
from interlock.tree.config import ParentConfig, SubserverLink, SubserversConfig

SHORTEST_HEARTBEAT: Final = 0.01
_TLS_KEYS: Final = ("ca", "certificate", "key")
_DEFAULTS: Final = Config()


def check_tree(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report every problem with `parent`, `subservers` and segments that are reserved."""
    _check_reserved(reader, values)
    _check_path(reader, values)
    parent: ParentConfig | None = values.get("parent")
    if parent is None:
        return
    if values.get("root_segment") is not None:
        reader.report(
            ("root_segment",),
            "a node with a parent gets its segment there",
            "remove it; the names of its tools begin with parent.segment",
        )
    _check_urls(reader, parent, values)
    _check_keys(reader, parent)
    if parent.heartbeat and not SHORTEST_HEARTBEAT <= parent.heartbeat <= MAX_INTERVAL_MS / 1000:
        reader.report(
            ("parent", "heartbeat"), "no node beats like this", "write 0, or from 10ms to 24h"
        )


def _check_reserved(reader: NodeReader, values: dict[str, Any]) -> None:
    """The node's own tools stand where a segment would."""
    taken: list[tuple[KeyPath, str]] = [
        (("servers", key, "segment"), server.segment or quantities.default_segment(key))
        for key, server in values.get("servers", {}).items()
    ]
    parent: ParentConfig | None = values.get("parent")
    if parent is not None:
        taken.append((("parent", "segment"), parent.segment))
    for path, segment in taken:
        if segment in RESERVED_SEGMENTS:
            where = path if path in reader.places else path[:-1]
            reader.report(
                where,
                f"{quoted(segment)} is a tool of every node and cannot be a segment",
                "choose another segment",
            )


def _check_path(reader: NodeReader, values: dict[str, Any]) -> None:
    subservers: SubserversConfig = values.get("subservers") or SubserversConfig()
    path = values.get("path", _DEFAULTS.path)
    if subservers.enabled and subservers.path == path:
        own: KeyPath = ("subservers", "path")
        reader.report(
            own if own in reader.places else ("path",),
            f"{path} would be both path and subservers.path",
            "give one of them another path",
        )


def _check_urls(reader: NodeReader, parent: ParentConfig, values: dict[str, Any]) -> None:
    subservers: SubserversConfig = values.get("subservers") or SubserversConfig()
    listen = values.get("listen", _DEFAULTS.listen)
    seen: set[str] = set()
    places: list[KeyPath] = [("parent", "url")]
    places += [("parent", "backup", index) for index in range(len(parent.backup))]
    for path, url in zip(places, [parent.url, *parent.backup], strict=True):
        if is_own_url("http" + url.removeprefix("ws"), listen, subservers.path):
            reader.report(
                path,
                "this is the node's own address: it would be its own parent",
                "name another node, or give this one another listen",
            )
        if url in seen:
            reader.report(path, "this parent is named twice", "remove one")
        seen.add(url)
    if not any(url.lower().startswith("wss:") or "${" in url for url in seen):
        for name in _TLS_KEYS:
            if ("parent", name) in reader.places:
                reader.report(("parent", name), f"{name} is for a wss:// parent", "remove it")


def _check_keys(reader: NodeReader, parent: ParentConfig) -> None:
    for name, needed in (
        ("key", "certificate"),
        ("certificate", "key"),
        ("authority_key", "authority"),
    ):
        if getattr(parent, name) is not None and getattr(parent, needed) is None:
            reader.report(("parent", name), f"{name} is nothing without {needed}", f"add {needed}")


PARENT: Final = SectionDefinition(
    ParentConfig,
    "The node that this one registers with. Default: none.",
    check=check_tree,
    reference=(
        (
            "`parent`",
            ParentConfig,
            "`ws://` is for this machine only: to another one write `wss://`, which takes TLS 1.3. "
            "A node with a parent has no `root_segment` of its own. `authority` is a claim; the "
            "proof of it is a token signed with `authority_key`, or the client `certificate`. A "
            "changed `parent` takes effect at once: the node leaves the old one and registers with "
            "the new.",
        ),
    ),
)
SUBSERVERS: Final = SectionDefinition(
    SubserversConfig,
    reference=(
        (
            "`subservers`",
            SubserversConfig,
            "Everybody who may call may also register. `enabled`, `path` and `store` take a new "
            "start of the node, the rest takes effect at once.",
        ),
        (
            "`subservers.budget` and `subservers.links.SEGMENT.budget`",
            BudgetConfig,
            "A call beyond it is answered with `budget_exceeded`.",
        ),
        ("`subservers.links.SEGMENT`", SubserverLink, ""),
    ),
)
