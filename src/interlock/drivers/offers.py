"""Prompts and resources of a driver's server (AIP-32). Only those that the driver declares are
offered.

A resource that is declared as a reference kind can also be requested by that kind: in
`mcp_filesystem:file:///a` the text before the first colon is the kind, and the rest is the server's
own URI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock.core.call import Call
from interlock.drivers.resource_uris import check_uris
from interlock.errors import UNKNOWN_RESOURCE, InterlockError, ProtocolError
from interlock.manifests.model import DeclaredResource, DriverManifest, ToolContract
from interlock.manifests.references import allow_slashes
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.uri_templates import UriTemplate, normalize_uri, read_template

META_SKILL: Final = "dev.interlock/skill"
"""Key in `_meta` of a prompt that is a block of a skill. Its value is the skill's file."""
_URI_INPUT: Final = {
    "type": "object",
    "properties": {"uri": {"type": "string", "format": "uri"}},
    "required": ["uri"],
}


def declared_prompts(
    manifest: DriverManifest, listed: Iterable[Raw]
) -> tuple[list[bytes], list[str]]:
    """Select the declared prompts from the server's list. Also return a message for each declared
    prompt that the server lacks."""
    declared = {prompt.name: prompt for prompt in manifest.prompts}
    selected: list[bytes] = []
    for entry in _entries(listed):
        prompt = declared.pop(str(entry.get("name")), None)
        if prompt is not None:
            if prompt.description:
                entry = {**entry, "description": prompt.description}
            if prompt.integrate_as == "skill_block":
                entry["_meta"] = {**_meta(entry), META_SKILL: prompt.skill_ref}
            selected.append(encode_value(entry))
    return selected, [f"Its server has no prompt {name!r}." for name in declared]


def declared_resources(
    manifest: DriverManifest, resources: Iterable[Raw], templates: Iterable[Raw]
) -> tuple[list[bytes], list[bytes], list[str]]:
    """Select the resources and templates that the driver declares. Also return a message for each
    declared template that matches nothing."""
    selected_resources: list[bytes] = []
    selected_templates: list[bytes] = []
    missing = []
    listed_resources, listed_templates = _entries(resources), _entries(templates)
    for resource in manifest.resources:
        pattern = _compile_template(resource.uri_template)
        covered = [
            entry
            for entry in listed_resources
            if entry.get("uri") == resource.uri_template or _covers(pattern, str(entry.get("uri")))
        ]
        equal = [
            entry for entry in listed_templates if entry.get("uriTemplate") == resource.uri_template
        ]
        if not covered and not equal:
            missing.append(f"Its server lists no resource of {resource.uri_template!r}.")
            continue
        selected_resources += [encode_value(entry) for entry in covered]
        selected_templates += [encode_value(entry) for entry in equal]
        if resource.integrate_as == "ref_kind":
            selected_templates.append(_reference_template(resource))
    return selected_resources, selected_templates, missing


class DeclaredUris:
    """The URIs that may be requested from a driver's server."""

    def __init__(
        self,
        manifest: DriverManifest,
        roots: Sequence[str] | None,
        resolve: Callable[[str], str],
    ) -> None:
        """Args:
        roots: the folders that the server got as arguments, or None.
        resolve: resolves the links of a path.
        """
        self._declared = manifest.resources
        self._patterns = [
            _compile_template(resource.uri_template) for resource in manifest.resources
        ]
        self._kinds = {
            resource.ref_kind_id for resource in manifest.resources if resource.ref_kind_id
        }
        self._roots = roots
        self._resolve = resolve
        # `check_uris` works on the inputs of a contract, so the URI is checked as the input of a
        # pseudo contract.
        self._uri_contract = ToolContract(
            file=manifest.file, id=manifest.id, name="", description="", version="1.0.0",
            inputs=_URI_INPUT, outputs={},
        )  # fmt: skip

    def server_uri(self, uri: str) -> str:
        """Return the server's own URI of a resource. Raises InterlockError if the driver does not
        declare the resource or the URI leads outside of the driver's folders."""
        kind, colon, body = uri.partition(":")
        server_uri = body if colon and kind in self._kinds else uri
        if not any(
            server_uri == resource.uri_template or _covers(pattern, server_uri)
            for resource, pattern in zip(self._declared, self._patterns, strict=True)
        ):
            raise InterlockError(
                UNKNOWN_RESOURCE,
                f"{self._uri_contract.id} declares no resource {uri[:100]!r}.",
                {"uri": uri},
            )
        check_uris(self._uri_contract, {"uri": server_uri}, self._roots, resolve=self._resolve)
        return server_uri

    def rewrite_request(self, call: Call) -> None:
        """Replace the resource URI in a request by the server's own URI. Raises InterlockError."""
        extra = call.extra_params or {}
        uri = decode_value(extra["uri"]) if "uri" in extra else call.name
        server_uri = self.server_uri(str(uri))
        if server_uri != uri:
            call.extra_params = {**extra, "uri": Raw(encode_value(server_uri))}


def _reference_template(resource: DeclaredResource) -> bytes:
    """Return the resource template of a reference kind."""
    entry = {
        "uriTemplate": f"{resource.ref_kind_id}:{allow_slashes(resource.uri_template)}",
        "name": resource.ref_kind_id,
    }
    if resource.description:
        entry["description"] = resource.description
    return encode_value(entry)


def _compile_template(template: str) -> UriTemplate | None:
    return read_template(allow_slashes(template))


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
