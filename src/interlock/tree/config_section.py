"""The definitions of the sections `parent` and `subservers`: structs, checks and reference."""

from __future__ import annotations

from typing import Any, Final

from interlock.core.config import quantities
from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.model import Config
from interlock.core.config.own_node import is_own_url
from interlock.core.config.problems import KeyPath, quote
from interlock.core.config.reader import NodeReader
from interlock.core.config.trust import BudgetConfig
from interlock.protocol.mcpax import MAX_INTERVAL_MS, RESERVED_SEGMENTS
from interlock.tree.config import ParentConfig, SubserverLink, SubserversConfig

MIN_HEARTBEAT_SECONDS: Final = 0.01
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
            "the parent assigns the segment of a node",
            "remove it; the tool names begin with parent.segment",
        )
    _check_urls(reader, parent, values)
    _check_keys(reader, parent)
    if parent.heartbeat and not MIN_HEARTBEAT_SECONDS <= parent.heartbeat <= MAX_INTERVAL_MS / 1000:
        reader.report(
            ("parent", "heartbeat"),
            "the interval is out of range",
            "write 0, or a duration from 10ms to 24h",
        )


def _check_reserved(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report segments that have the name of a built-in tool."""
    segments_by_path: list[tuple[KeyPath, str]] = [
        (("servers", key, "segment"), server.segment or quantities.default_segment(key))
        for key, server in values.get("servers", {}).items()
    ]
    parent: ParentConfig | None = values.get("parent")
    if parent is not None:
        segments_by_path.append((("parent", "segment"), parent.segment))
    for path, segment in segments_by_path:
        if segment in RESERVED_SEGMENTS:
            problem_path = path if path in reader.places else path[:-1]
            reader.report(
                problem_path,
                f"{quote(segment)} is the name of a built-in tool and cannot be a segment",
                "choose another segment",
            )


def _check_path(reader: NodeReader, values: dict[str, Any]) -> None:
    subservers: SubserversConfig = values.get("subservers") or SubserversConfig()
    path = values.get("path", _DEFAULTS.path)
    if subservers.enabled and subservers.path == path:
        path_key: KeyPath = ("subservers", "path")
        reader.report(
            path_key if path_key in reader.places else ("path",),
            f"path and subservers.path are both {path}",
            "change one of them",
        )


def _check_urls(reader: NodeReader, parent: ParentConfig, values: dict[str, Any]) -> None:
    subservers: SubserversConfig = values.get("subservers") or SubserversConfig()
    listen = values.get("listen", _DEFAULTS.listen)
    urls: set[str] = set()
    url_paths: list[KeyPath] = [("parent", "url")]
    url_paths += [("parent", "backup", index) for index in range(len(parent.backup))]
    for path, url in zip(url_paths, [parent.url, *parent.backup], strict=True):
        if is_own_url("http" + url.removeprefix("ws"), listen, subservers.path):
            reader.report(
                path,
                "this is the address of this node, which cannot be its own parent",
                "use the address of another node, or change listen",
            )
        if url in urls:
            reader.report(path, "this parent is listed twice", "remove one")
        urls.add(url)
    if not any(url.lower().startswith("wss:") or "${" in url for url in urls):
        for name in _TLS_KEYS:
            if ("parent", name) in reader.places:
                reader.report(("parent", name), f"{name} is for a wss:// parent", "remove it")


def _check_keys(reader: NodeReader, parent: ParentConfig) -> None:
    for name, required in (
        ("key", "certificate"),
        ("certificate", "key"),
        ("authority_key", "authority"),
    ):
        if getattr(parent, name) is not None and getattr(parent, required) is None:
            reader.report(("parent", name), f"{name} requires {required}", f"add {required}")


PARENT: Final = SectionDefinition(
    ParentConfig,
    "The node that this one registers with. Default: none.",
    check=check_tree,
    reference=(
        (
            "`parent`",
            ParentConfig,
            "`ws://` is for this machine only. To another machine use `wss://`, which requires "
            "TLS 1.3. A node with a parent has no `root_segment`. `authority` is a claim; the "
            "proof is a token signed with `authority_key`, or the client `certificate`. A "
            "changed `parent` takes effect at once: the node deregisters from the old parent and "
            "registers with the new one.",
        ),
    ),
)
SUBSERVERS: Final = SectionDefinition(
    SubserversConfig,
    reference=(
        (
            "`subservers`",
            SubserversConfig,
            "Callers without tokens can register, too. Changes of `enabled`, `path` and `store` "
            "require a restart of the node. Other changes take effect at once.",
        ),
        (
            "`subservers.budget` and `subservers.links.SEGMENT.budget`",
            BudgetConfig,
            "A call that exceeds the budget is rejected with `budget_exceeded`.",
        ),
        ("`subservers.links.SEGMENT`", SubserverLink, ""),
    ),
)
