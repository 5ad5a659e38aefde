"""Whose resource is this? URIs of all upstreams together.

A URI that one upstream lists stays as it is. One that several list is shown as
`interlock:<segment>:<own uri>`, which leads back whatever comes or goes. The upstream that is
shown as itself, if there is one, keeps its URIs, and they win.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from interlock.catalog.offering import Offering, Resource
from interlock.errors import INVALID_PARAMS, InterlockError
from interlock.protocol.uri_templates import plain

SCHEME: Final = "interlock:"
_LONGEST_MATCHED: Final = 4096
"""A longer URI is compared, but not with templates."""
_MOST_STEPS: Final = 100_000
"""The work that the templates of one upstream may make, so that they hold up nobody for long."""


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


class Uris:
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
        for one in offerings:
            screens = (tool.screen for tool in one.tools if tool.screen is not None)
            for uri in dict.fromkeys((*(each.uri for each in one.resources), *screens)):
                self._owners.setdefault(uri, []).append(one)
            for template in one.templates:
                self._template_owners.setdefault(template.uri, []).append(one)
        self.all_colliding = {
            one.upstream
            for owners in (self._owners, self._template_owners)
            for uri, listing in owners.items()
            for one in listing
            if self._as_listed(one, uri, listing) != uri
        }
        self.resources = self._shown(self._owners, lambda one: one.resources)
        self.templates = self._shown(self._template_owners, lambda one: one.templates)

    def _shown(self, owners: dict[str, list[Offering]], kind: _Part) -> tuple[ShownResource, ...]:
        shown: dict[str, ShownResource] = {}
        kept = set() if self._itself is None else {each.uri for each in kind(self._itself)}
        for one in self._offerings:
            for each in kind(one):
                uri = self._as_listed(one, each.uri, owners[each.uri])
                # Nothing is shown twice, whatever upstreams call their resources.
                if one is self._itself or uri not in kept:
                    shown.setdefault(uri, ShownResource(_form(one, each.uri), uri, each.listed))
        return tuple(shown.values())

    def _as_listed(self, one: Offering, uri: str, owners: list[Offering]) -> str:
        if one is self._itself or (len(owners) == 1 and not uri.startswith(SCHEME)):
            return uri
        # An own URI that looks like our form would be taken for another's, so it always gets it.
        return _form(one, uri)

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
        for owners in (self._owners, self._template_owners):
            if uri in owners:
                return self._one_of(owners[uri], uri)
        matching = self._matching(uri)
        if matching:
            return self._one_of(matching, uri)
        if self._itself is not None:
            return self._itself
        # Servers may serve what they do not list.
        serving = [one for one in self._offerings if one.serves_resources]
        return serving[0] if len(serving) == 1 else None

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

    def _matching(self, uri: str) -> list[Offering]:
        """Those with a template that fits; of several, those whose template says most about it."""
        if len(uri) > _LONGEST_MATCHED:
            return []
        asked = plain(uri)
        best: dict[int, list[Offering]] = {}
        for one in self._offerings:
            said = _best_match(one.templates, asked)
            if said is None:
                continue
            if one is self._itself:
                return [one]
            best.setdefault(said, []).append(one)
        return best[max(best)] if best else []

    # -- from an upstream's URI to a client's

    def shown_uri(self, upstream: str, own: str) -> str:
        """How clients see a URI of this upstream: `resource` leads from there back to it."""
        one = self._by_upstream.get(upstream)
        if one is None or one is self._itself:
            return own
        for owners in (self._owners, self._template_owners):
            if own in owners:
                listing = owners[own]
                return self._as_listed(one, own, listing) if one in listing else _form(one, own)
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


def _best_match(templates: Sequence[Resource], asked: str) -> int | None:
    """How much of the URI is fixed by the template that says most about it. None: none fits."""
    best: int | None = None
    left = _MOST_STEPS
    for each in templates:
        template = each.template
        if template is None or (best is not None and template.literal_length <= best):
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
