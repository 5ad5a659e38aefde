"""URIs of all upstreams: which upstream has a resource, and under which URI clients see it.

A URI that one upstream lists stays as it is. A URI that several list, or that a template of another
upstream covers, is shown as `interlock:<segment>:<upstream URI>`, which leads back regardless of
changes. So no upstream takes over what another serves: the plain URI stays with the upstream whose
template covers it, and with a configured upstream if only registered ones also have it. The
upstream that is shown as itself, if there is one, keeps its URIs, and they have priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from interlock.core.catalog.offering import Offering, Resource, Skill
from interlock.errors import INVALID_PARAMS, InterlockError
from interlock.protocol.uri_templates import UriTemplate, normalize_uri

SCHEME: Final = "interlock:"
_MAX_MATCHED_LENGTH: Final = 4096
"""Longer URIs are compared but not matched with templates."""
_MAX_MATCH_STEPS: Final = 100_000
"""The limit of the work to match one URI with the templates of one upstream."""
_MAX_COMPARE_STEPS: Final = 500_000
"""The limit of the work to match the URIs of one upstream with templates of others."""


class ResourceRoute(msgspec.Struct, frozen=True, gc=False):
    """The upstream of a URI."""

    upstream: str
    upstream_uri: str
    """The URI at the upstream."""
    shown_uri: str
    """The URI that clients see, whichever form was requested."""


class ShownResource(msgspec.Struct, frozen=True, gc=False):
    """A resource or a template in a list."""

    identity: str
    """A key that stays the same when other upstreams list or remove the URI."""
    uri: str
    listed: bytes


_ResourceSelector = Callable[[Offering], tuple[Resource, ...]]


class UriTable:
    """All listed URIs and templates."""

    def __init__(self, offerings: Sequence[Offering]) -> None:
        """
        Args:
            offerings: in the order of lists.
        """
        self._offerings = offerings
        self._by_upstream = {offering.upstream: offering for offering in offerings}
        transparent = [offering for offering in offerings if offering.is_transparent]
        self._transparent = transparent[0] if transparent else None
        self._by_segment: dict[str, Offering] = {}
        for offering in offerings:
            # Built-in offerings have no segment and no URIs.
            if offering is not self._transparent and offering.segment:
                self._by_segment.setdefault(offering.segment, offering)
        self._owners: dict[str, list[Offering]] = {}
        self._template_owners: dict[str, list[Offering]] = {}
        self._by_scheme: dict[str, dict[Offering, list[UriTemplate]]] = {}
        """Templates with a fixed scheme. Only these protect URIs from other upstreams."""
        self._folders: dict[str, list[Offering]] = {}
        """The upstreams with a skill in a folder. Its files need not be listed."""
        for offering in offerings:
            ui_resources = (
                tool.ui_resource for tool in offering.tools if tool.ui_resource is not None
            )
            files = (file for skill in offering.skills for file in skill.files)
            for uri in dict.fromkeys(
                (*(resource.uri for resource in offering.resources), *ui_resources, *files)
            ):
                self._owners.setdefault(uri, []).append(offering)
            for template in offering.templates:
                self._template_owners.setdefault(template.uri, []).append(offering)
                if template.template is not None and template.template.scheme:
                    templates = self._by_scheme.setdefault(template.template.scheme, {})
                    templates.setdefault(offering, []).append(template.template)
            for skill in offering.skills:
                folder = _folder(skill.uri)
                if offering not in self._folders.setdefault(folder, []):
                    self._folders[folder].append(offering)
        self._plain_owners = self._find_plain_owners()
        """The upstream that keeps a listed URI in its plain form. Other URIs are matched."""
        self.colliding_upstreams = {
            offering.upstream
            for owners in (self._owners, self._template_owners)
            for uri, owners_of_uri in owners.items()
            for offering in owners_of_uri
            if self._shown_form(offering, uri) != uri
        }
        self.resources = self._list_visible(lambda offering: offering.resources)
        self.templates = self._list_visible(lambda offering: offering.templates)
        self.skills = self._list_visible(
            lambda offering: tuple(
                Resource(skill.uri, self._encode_skill(offering, skill))
                for skill in offering.skills
            )
        )

    def _encode_skill(self, offering: Offering, skill: Skill) -> bytes:
        """Return the definition of a skill with the URIs of its files as clients see them."""
        if all(self._shown_form(offering, file) == file for file in skill.files):
            return skill.listed
        entry = msgspec.json.decode(b"{" + skill.listed[1:], type=dict[str, msgspec.Raw])
        files = msgspec.json.decode(entry["resources"])
        if isinstance(files, list):
            shown_files = [
                {**file, "uri": self._shown_form(offering, file["uri"])} for file in files
            ]
            entry["resources"] = msgspec.Raw(msgspec.json.encode(shown_files))
        return b"," + msgspec.json.encode(entry)[1:]

    def _find_plain_owners(self) -> dict[str, Offering]:
        plain_owners: dict[str, Offering] = {}
        remaining_steps: dict[Offering, int] = {}
        for owners in (self._template_owners, self._owners):
            for uri, owners_of_uri in owners.items():
                preferred = _prefer_configured(owners_of_uri)
                if self._transparent in owners_of_uri:
                    assert self._transparent is not None
                    plain_owners[uri] = self._transparent
                elif len(preferred) > 1 or uri.startswith(SCHEME):
                    plain_owners.pop(uri, None)
                elif owners is self._template_owners:
                    plain_owners[uri] = preferred[0]
                else:
                    remaining_steps[preferred[0]] = self._assign_plain_form(
                        uri, preferred[0], remaining_steps, plain_owners
                    )
        return plain_owners

    def _assign_plain_form(
        self,
        uri: str,
        owner: Offering,
        remaining_steps: dict[Offering, int],
        plain_owners: dict[str, Offering],
    ) -> int:
        """Assign the plain form of a URI to `owner`, which lists it, unless a template of another
        upstream covers it or the work limit is reached. Returns the remaining steps."""
        steps = remaining_steps.get(owner, _MAX_COMPARE_STEPS)
        plain_owners.pop(uri, None)
        candidates = self._by_scheme.get(_scheme(uri), {})
        path = normalize_uri(uri) if candidates else ""
        for other, templates in candidates.items():
            if other is owner or (other.registered and not owner.registered):
                continue
            for template in templates:
                steps -= 1 + template.cost(path)
                if steps < 0 or template.matches(path):
                    return steps
        plain_owners[uri] = owner
        return steps

    def _list_visible(self, kind: _ResourceSelector) -> tuple[ShownResource, ...]:
        resources_by_uri: dict[str, ShownResource] = {}
        transparent_uris = (
            set()
            if self._transparent is None
            else {resource.uri for resource in kind(self._transparent)}
        )
        for offering in self._offerings:
            for resource in kind(offering):
                uri = self._shown_form(offering, resource.uri)
                # No URI is listed twice.
                if offering is self._transparent or uri not in transparent_uris:
                    resources_by_uri.setdefault(
                        uri,
                        ShownResource(_prefixed_form(offering, resource.uri), uri, resource.listed),
                    )
        return tuple(resources_by_uri.values())

    def _shown_form(self, offering: Offering, uri: str) -> str:
        # A URI that looks like our form would be mistaken for another's: it always gets a prefix.
        return (
            uri
            if offering is self._transparent or self._plain_owners.get(uri) is offering
            else _prefixed_form(offering, uri)
        )

    # -- from the URI of a client to the URI of an upstream

    def resource(self, uri: str) -> ResourceRoute | None:
        """Return the upstream of a URI or of a listed template. None: it is unknown.

        Raises:
            InterlockError: several upstreams may have it.
        """
        if uri.startswith(SCHEME):
            owners_of_uri = self._owners.get(uri) or self._template_owners.get(uri) or ()
            if self._transparent is None or self._transparent not in owners_of_uri:
                segment, _, upstream_uri = uri[len(SCHEME) :].partition(":")
                offering = self._by_segment.get(segment)
                if offering is not None and upstream_uri:
                    return ResourceRoute(
                        offering.upstream,
                        upstream_uri,
                        self.shown_uri(offering.upstream, upstream_uri),
                    )
        offering = self._find_offering(uri)
        if offering is None:
            return None
        return ResourceRoute(offering.upstream, uri, self.shown_uri(offering.upstream, uri))

    def _find_offering(self, uri: str) -> Offering | None:
        """Return the upstream of a URI in its plain form."""
        owner = self._plain_owners.get(uri)
        if owner is not None:
            return owner
        owners = self._owners.get(uri) or self._template_owners.get(uri) or []
        matching = self._find_matching(uri, is_listed=bool(owners))
        if self._transparent is not None and self._transparent in matching:
            return self._transparent
        preferred = _prefer_configured(list(dict.fromkeys((*owners, *matching))))
        if preferred:
            # A template has priority over upstreams that list a URI which it covers.
            return self._require_single(
                [offering for offering in preferred if offering in matching] or preferred, uri
            )
        folders = self._find_folder_owners(uri)
        if folders:
            return self._require_single(_prefer_configured(folders), uri)
        if self._transparent is not None:
            return self._transparent
        # Servers may serve unlisted resources.
        serving = _prefer_configured(
            [offering for offering in self._offerings if offering.serves_resources]
        )
        return serving[0] if len(serving) == 1 else None

    def _find_folder_owners(self, uri: str) -> list[Offering]:
        """Return the upstreams with a skill in the closest folder that contains the URI."""
        if not self._folders or len(uri) > _MAX_MATCHED_LENGTH:
            return []
        folder = uri.removesuffix("/")
        while folder not in self._folders and "/" in folder:
            folder = _folder(folder)
        return self._folders.get(folder, [])

    def _require_single(self, offerings: list[Offering], uri: str) -> Offering:
        if self._transparent is not None and self._transparent in offerings:
            return self._transparent
        if len(offerings) == 1:
            return offerings[0]
        forms = [_prefixed_form(offering, uri) for offering in offerings]
        raise InterlockError(
            INVALID_PARAMS,
            f"Several servers have this resource. Use {' or '.join(_shorten(forms))}.",
            {"uri": uri, "forms": forms},
        )

    def _find_matching(self, uri: str, *, is_listed: bool) -> list[Offering]:
        """Return the upstreams with a matching template.

        Of several configured ones, those with the most specific template. Registered ones have the
        same rank.

        Args:
            is_listed: an upstream lists the URI, so only templates with a fixed scheme count.
        """
        if len(uri) > _MAX_MATCHED_LENGTH:
            return []
        path = normalize_uri(uri)
        best: dict[tuple[bool, int], list[Offering]] = {}
        for offering in self._offerings:
            literal_length = _best_match(offering.templates, path, is_listed=is_listed)
            if literal_length is None:
                continue
            if offering is self._transparent:
                return [offering]
            rank = (
                (False, min(literal_length, 1)) if offering.registered else (True, literal_length)
            )
            best.setdefault(rank, []).append(offering)
        return best[max(best)] if best else []

    # -- from the URI of an upstream to the URI of clients

    def shown_uri(self, upstream: str, upstream_uri: str) -> str:
        """Return the form in which clients see a URI. `resource` leads from there back to it."""
        offering = self._by_upstream.get(upstream)
        if offering is None or offering is self._transparent:
            return upstream_uri
        for owners in (self._owners, self._template_owners):
            if offering in owners.get(upstream_uri, ()):
                return self._shown_form(offering, upstream_uri)
        if upstream_uri.startswith(SCHEME):
            return _prefixed_form(offering, upstream_uri)
        try:
            return (
                upstream_uri
                if self._find_offering(upstream_uri) is offering
                else _prefixed_form(offering, upstream_uri)
            )
        except InterlockError:
            return _prefixed_form(offering, upstream_uri)

    def has_collisions(self, upstream: str) -> bool:
        """Return whether a listed URI of this upstream is shown in another form."""
        return upstream in self.colliding_upstreams


def _prefixed_form(offering: Offering, uri: str) -> str:
    return f"{SCHEME}{offering.segment}:{uri}"


def _prefer_configured(offerings: list[Offering]) -> list[Offering]:
    """Return the configured ones of these upstreams. If there are none, return all."""
    if len(offerings) < 2:
        return offerings
    return [offering for offering in offerings if not offering.registered] or offerings


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]


def _scheme(uri: str) -> str:
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def _best_match(templates: Sequence[Resource], path: str, *, is_listed: bool) -> int | None:
    """Return the literal length of the most specific matching template. None: none matches."""
    best: int | None = None
    remaining_steps = _MAX_MATCH_STEPS
    for resource in templates:
        template = resource.template
        if template is None or (best is not None and template.literal_length <= best):
            continue
        if is_listed and not template.scheme:
            continue
        remaining_steps -= template.cost(path)
        if remaining_steps < 0:
            break
        if template.matches(path):
            best = template.literal_length
    return best


def _shorten(forms: list[str]) -> list[str]:
    """Shorten a list of forms for an error message."""
    return [form if len(form) <= 100 else form[:100] + "…" for form in forms[:5]]
