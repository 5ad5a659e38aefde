"""Prompts and resources of a driver's server: only those that the driver declares are offered.

A resource that is declared as a kind of reference can also be asked for by that: what stands before
the first colon of `mcp_filesystem:file:///a` is the kind, the rest is the server's own URI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.core.call import Call
from interlock.drivers.resource_uris import check_uris
from interlock.errors import UNKNOWN_RESOURCE, InterlockError, ProtocolError
from interlock.manifests.model import DeclaredResource, DriverManifest, ToolContract
from interlock.manifests.references import with_slashes
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.uri_templates import UriTemplate, normalize_uri, read_template

META_SKILL: Final = "dev.interlock/skill"
"""In the `_meta` of a prompt that is a block of a skill: the skill's file."""
_WITH_URI: Final = {
    "type": "object",
    "properties": {"uri": {"type": "string", "format": "uri"}},
    "required": ["uri"],
}


def declared_prompts(
    manifest: DriverManifest, listed: Iterable[Raw]
) -> tuple[list[bytes], list[str]]:
    """The declared ones, as the server lists them, and a sentence for each that it lacks."""
    wanted = {prompt.name: prompt for prompt in manifest.prompts}
    kept: list[bytes] = []
    for entry in _entries(listed):
        prompt = wanted.pop(str(entry.get("name")), None)
        if prompt is not None:
            if prompt.description:
                entry = {**entry, "description": prompt.description}
            if prompt.integrate_as == "skill_block":
                entry["_meta"] = {**_meta(entry), META_SKILL: prompt.skill_ref}
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
    for resource in manifest.resources:
        pattern = _compile_template(resource.uri_template)
        covered = [
            entry
            for entry in concrete
            if entry.get("uri") == resource.uri_template or _covers(pattern, str(entry.get("uri")))
        ]
        same = [entry for entry in general if entry.get("uriTemplate") == resource.uri_template]
        if not covered and not same:
            missing.append(f"Its server lists no resource of {resource.uri_template!r}.")
            continue
        kept += [encode_value(entry) for entry in covered]
        found += [encode_value(entry) for entry in same]
        if resource.integrate_as == "ref_kind":
            found.append(_reference_template(resource))
    return kept, found, missing


class DeclaredUris:
    """Which URIs of a driver's server may be asked for."""

    def __init__(
        self,
        manifest: DriverManifest,
        roots: Sequence[str] | None,
        resolve: Callable[[str], str],
    ) -> None:
        """`roots`: the folders that its server was given; None: it was given none."""
        self._declared = manifest.resources
        self._patterns = [
            _compile_template(resource.uri_template) for resource in manifest.resources
        ]
        self._kinds = {
            resource.ref_kind_id for resource in manifest.resources if resource.ref_kind_id
        }
        self._roots = roots
        self._resolve = resolve
        # What a driver's folders say about URIs is checked as if a contract had one among its
        # inputs.
        self._asked = ToolContract(
            file=manifest.file, id=manifest.id, name="", description="", version="1.0.0",
            inputs=_WITH_URI, outputs={},
        )  # fmt: skip

    def own(self, uri: str) -> str:
        """What the server calls it. Raises InterlockError for what the driver does not declare, or
        what would lead out of its folders."""
        kind, colon, body = uri.partition(":")
        own = body if colon and kind in self._kinds else uri
        if not any(
            own == resource.uri_template or _covers(pattern, own)
            for resource, pattern in zip(self._declared, self._patterns, strict=True)
        ):
            raise InterlockError(
                UNKNOWN_RESOURCE,
                f"{self._asked.id} declares no resource {uri[:100]!r}.",
                {"uri": uri},
            )
        check_uris(self._asked, {"uri": own}, self._roots, resolve=self._resolve)
        return own

    def rewrite_request(self, call: Call) -> None:
        """Have a request about a resource speak of it in the server's words. Raises
        InterlockError."""
        extra = call.extra_params or {}
        uri = decode_value(extra["uri"]) if "uri" in extra else call.name
        own = self.own(str(uri))
        if own != uri:
            call.extra_params = {**extra, "uri": Raw(encode_value(own))}


def _reference_template(resource: DeclaredResource) -> bytes:
    """The template of references to a resource."""
    entry = {
        "uriTemplate": f"{resource.ref_kind_id}:{with_slashes(resource.uri_template)}",
        "name": resource.ref_kind_id,
    }
    if resource.description:
        entry["description"] = resource.description
    return encode_value(entry)


def _compile_template(template: str) -> UriTemplate | None:
    return read_template(with_slashes(template))


def _covers(pattern: UriTemplate | None, uri: str) -> bool:
    return pattern is not None and pattern.matches(normalize_uri(uri))


def _meta(entry: dict[str, Any]) -> dict[str, Any]:
    meta = entry.get("_meta")
    return meta if isinstance(meta, dict) else {}


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
