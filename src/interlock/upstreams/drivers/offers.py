"""Prompts and resources of a driver's server: only those that the driver declares are offered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.manifests.driver import DriverManifest
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.uri_templates import read_template


def declared_prompts(
    manifest: DriverManifest, listed: Iterable[Raw]
) -> tuple[list[bytes], list[str]]:
    """The declared ones, as the server lists them, and a sentence for each that it lacks."""
    wanted = {one.name: one for one in manifest.prompts}
    kept: list[bytes] = []
    for entry in _entries(listed):
        prompt = wanted.pop(str(entry.get("name")), None)
        if prompt is not None:
            if prompt.description:
                entry = {**entry, "description": prompt.description}
            kept.append(encode_value(entry))
    return kept, [f"Its server has no prompt {name!r}." for name in wanted]


def declared_resources(
    manifest: DriverManifest, resources: Iterable[Raw], templates: Iterable[Raw]
) -> tuple[list[bytes], list[bytes], list[str]]:
    """The same for resources and templates: those that a declared template covers."""
    kept: list[bytes] = []
    found: list[bytes] = []
    missing = []
    concrete, general = _entries(resources), _entries(templates)
    for one in manifest.resources:
        pattern = read_template(one.uri_template)
        covered = [
            entry
            for entry in concrete
            if entry.get("uri") == one.uri_template
            or (pattern is not None and pattern.matches(str(entry.get("uri"))))
        ]
        same = [entry for entry in general if entry.get("uriTemplate") == one.uri_template]
        if not covered and not same:
            missing.append(f"Its server lists no resource of {one.uri_template!r}.")
        kept += [encode_value(entry) for entry in covered]
        found += [encode_value(entry) for entry in same]
    return kept, found, missing


def _entries(listed: Iterable[Raw]) -> list[dict[str, Any]]:
    entries = []
    for raw in listed:
        try:
            entry = decode_value(raw)
        except ProtocolError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
