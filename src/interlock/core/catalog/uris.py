"""Whose resource is this? URIs of all upstreams together.

A URI that one upstream lists stays as it is. One that several list, or that a template of another
upstream covers, is shown as `interlock:<segment>:<own uri>`, which leads back whatever comes or
goes. So nobody takes over what another serves: the plain URI stays with the upstream whose template
covers it, and with an upstream of the config where only registered ones have it besides. The
upstream that is shown as itself, if there is one, keeps its URIs, and they win.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from interlock.core.catalog.offering import Offering, Resource, Skill
from interlock.errors import INVALID_PARAMS, InterlockError
from interlock.protocol.uri_templates import UriTemplate, normalize_uri

SCHEME: Final = "interlock:"
_LONGEST_MATCHED: Final = 4096
"""A longer URI is compared, but not with templates."""
_MOST_STEPS: Final = 100_000
"""The work that the templates of one upstream may make, so that they hold up nobody for long."""
_MOST_COMPARED: Final = 500_000
"""The work of comparing what one upstream lists with the templates of others, in the same steps."""


class ResourceRoute(msgspec.Struct, frozen=True, gc=False):
    """Where a URI leads."""

    upstream: str
    own_uri: str
    """What the upstream calls it."""
    shown_uri: str
    """What clients see it as, whichever form was asked for."""


class ShownResource(msgspec.Struct, frozen=True, gc=False):
    """A resource or a template as a line of a list."""

    identity: str
    """The same tomorrow, whoever else lists that URI by then."""
    uri: str
    listed: bytes


_Part = Callable[[Offering], tuple[Resource, ...]]


class UriTable:
    """Every URI that is listed, and every template."""

    def __init__(self, offerings: Sequence[Offering]) -> None:
        """`offerings` in the order in which they are listed."""
        self._offerings = offerings
        self._by_upstream = {one.upstream: one for one in offerings}
        itself = [one for one in offerings if one.transparent]
        self._itself = itself[0] if itself else None
        self._by_segment: dict[str, Offering] = {}
        for one in offerings:
            # What the node itself offers has no segment, and no URIs.
            if one is not self._itself and one.segment:
                self._by_segment.setdefault(one.segment, one)
        self._owners: dict[str, list[Offering]] = {}
        self._template_owners: dict[str, list[Offering]] = {}
        self._by_scheme: dict[str, dict[Offering, list[UriTemplate]]] = {}
        """Templates that say of what scheme their URIs are: they hold against what others list."""
        self._folders: dict[str, list[Offering]] = {}
        """Whose skills are in a folder: its files need not be listed."""
        for one in offerings:
            screens = (tool.screen for tool in one.tools if tool.screen is not None)
            files = (file for skill in one.skills for file in skill.files)
            for uri in dict.fromkeys((*(each.uri for each in one.resources), *screens, *files)):
                self._owners.setdefault(uri, []).append(one)
            for each in one.templates:
                self._template_owners.setdefault(each.uri, []).append(one)
                if each.template is not None and each.template.scheme:
                    templates = self._by_scheme.setdefault(each.template.scheme, {})
                    templates.setdefault(one, []).append(each.template)
            for skill in one.skills:
                folder = _folder(skill.uri)
                if one not in self._folders.setdefault(folder, []):
                    self._folders[folder].append(one)
        self._plain = self._keepers()
        """Who keeps a listed URI in its plain form. What is not here has to be looked at."""
        self.all_colliding = {
            one.upstream
            for owners in (self._owners, self._template_owners)
            for uri, listing in owners.items()
            for one in listing
            if self._as_listed(one, uri) != uri
        }
        self.resources = self._shown(lambda one: one.resources)
        self.templates = self._shown(lambda one: one.templates)
        self.skills = self._shown(
            lambda one: tuple(Resource(each.uri, self._skill(one, each)) for each in one.skills)
        )

    def _skill(self, one: Offering, skill: Skill) -> bytes:
        """How a skill reads in a list, with the URIs of its files as clients see them."""
        if all(self._as_listed(one, file) == file for file in skill.files):
            return skill.listed
        entry = msgspec.json.decode(b"{" + skill.listed[1:], type=dict[str, msgspec.Raw])
        files = msgspec.json.decode(entry["resources"])
        if isinstance(files, list):
            shown = [{**file, "uri": self._as_listed(one, file["uri"])} for file in files]
            entry["resources"] = msgspec.Raw(msgspec.json.encode(shown))
        return b"," + msgspec.json.encode(entry)[1:]

    def _keepers(self) -> dict[str, Offering]:
        kept: dict[str, Offering] = {}
        left: dict[Offering, int] = {}
        for owners in (self._template_owners, self._owners):
            for uri, listing in owners.items():
                first = _first(listing)
                if self._itself in listing:
                    assert self._itself is not None
                    kept[uri] = self._itself
                elif len(first) > 1 or uri.startswith(SCHEME):
                    kept.pop(uri, None)
                elif owners is self._template_owners:
                    kept[uri] = first[0]
                else:
                    left[first[0]] = self._compare(uri, first[0], left, kept)
        return kept

    def _compare(
        self, uri: str, one: Offering, left: dict[Offering, int], kept: dict[str, Offering]
    ) -> int:
        """Whether `one`, who lists the URI, keeps its plain form: not when a template of another
        covers it. In doubt it does not. Returns how many steps are left for what it lists."""
        budget = left.get(one, _MOST_COMPARED)
        kept.pop(uri, None)
        templates_of = self._by_scheme.get(_scheme(uri), {})
        asked = normalize_uri(uri) if templates_of else ""
        for other, templates in templates_of.items():
            if other is one or (other.registered and not one.registered):
                continue
            for template in templates:
                budget -= 1 + template.cost(asked)
                if budget < 0 or template.matches(asked):
                    return budget
        kept[uri] = one
        return budget

    def _shown(self, kind: _Part) -> tuple[ShownResource, ...]:
        shown: dict[str, ShownResource] = {}
        kept = set() if self._itself is None else {each.uri for each in kind(self._itself)}
        for one in self._offerings:
            for each in kind(one):
                uri = self._as_listed(one, each.uri)
                # Nothing is shown twice, whatever upstreams call their resources.
                if one is self._itself or uri not in kept:
                    shown.setdefault(uri, ShownResource(_form(one, each.uri), uri, each.listed))
        return tuple(shown.values())

    def _as_listed(self, one: Offering, uri: str) -> str:
        # An own URI that looks like our form would be taken for another's, so it always gets it.
        return uri if one is self._itself or self._plain.get(uri) is one else _form(one, uri)

    # -- from a client's URI to an upstream's

    def resource(self, uri: str) -> ResourceRoute | None:
        """Where `uri` leads, which may also be a template as it is listed. None: nobody knows.

        Raises InterlockError when several upstreams could be meant.
        """
        if uri.startswith(SCHEME):
            listing = self._owners.get(uri) or self._template_owners.get(uri) or ()
            if self._itself is None or self._itself not in listing:
                segment, _, own = uri[len(SCHEME) :].partition(":")
                named = self._by_segment.get(segment)
                if named is not None and own:
                    return ResourceRoute(named.upstream, own, self.shown_uri(named.upstream, own))
        found = self._meant(uri)
        if found is None:
            return None
        return ResourceRoute(found.upstream, uri, self.shown_uri(found.upstream, uri))

    def _meant(self, uri: str) -> Offering | None:
        """Who is meant by a URI in its own form."""
        kept = self._plain.get(uri)
        if kept is not None:
            return kept
        owners = self._owners.get(uri) or self._template_owners.get(uri) or []
        matching = self._matching(uri, listed=bool(owners))
        if self._itself is not None and self._itself in matching:
            return self._itself
        first = _first(list(dict.fromkeys((*owners, *matching))))
        if first:
            # A template holds against those who list a URI that it covers.
            return self._one_of([one for one in first if one in matching] or first, uri)
        folders = self._with_folder(uri)
        if folders:
            return self._one_of(_first(folders), uri)
        if self._itself is not None:
            return self._itself
        # Servers may serve what they do not list.
        serving = _first([one for one in self._offerings if one.serves_resources])
        return serving[0] if len(serving) == 1 else None

    def _with_folder(self, uri: str) -> list[Offering]:
        """Those with a skill whose folder this is, or has this in it; the closest folder counts."""
        if not self._folders or len(uri) > _LONGEST_MATCHED:
            return []
        folder = uri.removesuffix("/")
        while folder not in self._folders and "/" in folder:
            folder = _folder(folder)
        return self._folders.get(folder, [])

    def _one_of(self, offerings: list[Offering], uri: str) -> Offering:
        if self._itself is not None and self._itself in offerings:
            return self._itself
        if len(offerings) == 1:
            return offerings[0]
        forms = [_form(one, uri) for one in offerings]
        raise InterlockError(
            INVALID_PARAMS,
            f"Several servers have this resource: ask for {' or '.join(_cut(forms))}.",
            {"uri": uri, "forms": forms},
        )

    def _matching(self, uri: str, *, listed: bool) -> list[Offering]:
        """Those with a template that fits; of several of the config, those whose template says most
        about it. Of registered ones nobody goes before another. `listed`: somebody lists the URI,
        so that only templates count that say of what scheme their URIs are."""
        if len(uri) > _LONGEST_MATCHED:
            return []
        asked = normalize_uri(uri)
        best: dict[tuple[bool, int], list[Offering]] = {}
        for one in self._offerings:
            said = _best_match(one.templates, asked, listed=listed)
            if said is None:
                continue
            if one is self._itself:
                return [one]
            rank = (False, min(said, 1)) if one.registered else (True, said)
            best.setdefault(rank, []).append(one)
        return best[max(best)] if best else []

    # -- from an upstream's URI to a client's

    def shown_uri(self, upstream: str, own: str) -> str:
        """How clients see a URI of this upstream: `resource` leads from there back to it."""
        one = self._by_upstream.get(upstream)
        if one is None or one is self._itself:
            return own
        for owners in (self._owners, self._template_owners):
            if one in owners.get(own, ()):
                return self._as_listed(one, own)
        if own.startswith(SCHEME):
            return _form(one, own)
        try:
            return own if self._meant(own) is one else _form(one, own)
        except InterlockError:
            return _form(one, own)

    def colliding(self, upstream: str) -> bool:
        """Whether anything that this upstream lists is shown in another form."""
        return upstream in self.all_colliding


def _form(one: Offering, uri: str) -> str:
    return f"{SCHEME}{one.segment}:{uri}"


def _first(offerings: list[Offering]) -> list[Offering]:
    """Those of them that are in the config; if none is, all."""
    if len(offerings) < 2:
        return offerings
    return [one for one in offerings if not one.registered] or offerings


def _folder(uri: str) -> str:
    return uri.rpartition("/")[0]


def _scheme(uri: str) -> str:
    scheme, colon, _ = uri.partition(":")
    return scheme.lower() if colon else ""


def _best_match(templates: Sequence[Resource], asked: str, *, listed: bool) -> int | None:
    """How much of the URI is fixed by the template that says most about it. None: none fits."""
    best: int | None = None
    left = _MOST_STEPS
    for each in templates:
        template = each.template
        if template is None or (best is not None and template.literal_length <= best):
            continue
        if listed and not template.scheme:
            continue
        left -= template.cost(asked)
        if left < 0:
            break
        if template.matches(asked):
            best = template.literal_length
    return best


def _cut(forms: list[str]) -> list[str]:
    """For a sentence: no more, and no longer, than anybody reads."""
    return [form if len(form) <= 100 else form[:100] + "…" for form in forms[:5]]
