"""The view of a client: every tool (the plain view), or the endpoints of a feature such as AQL.

The URL selects a view (`?view=aql`). Without a selection the config decides, by client and caller.
If the config denies the plain view, no client gets it by request, by default or by its name. The
command line of this machine, which uses the Unix socket of the node, is the only exception. The
feature itself makes the contents of a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from interlock.core.config.feature_sections import section_definitions
from interlock.core.config.model import Config
from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.protocol.aql_terms import PLAIN_VIEW, OperationView, matches_glob

CHOSEN: Final = "notifications/interlock/view"
"""The method that selects a view on a stream, which has no URL. It is the first message."""
_INTERLOCK_CLIENTS: Final = frozenset({"interlock", "interlock-cli"})
"""The client names of nodes and of the command line, which need the plain view."""
_PLAIN: Final = "plain"


class ViewRule(NamedTuple):
    """A rule that gives a view to some clients. Every list that is not empty must match."""

    view: str
    clients: Sequence[str] = ()
    """Globs of client names."""
    callers: Sequence[str] = ()
    """Globs of callers."""


class ViewTable(NamedTuple):
    """The views of a feature, and the rules that select them."""

    views: Mapping[str, OperationView]
    """The views by name, without the plain view."""
    default: str
    """The name of the view of clients that select none."""
    replacement: OperationView
    """The view that replaces the plain view where it is denied, and the view of a URL that has a
    namespace but no view."""
    rules: Sequence[ViewRule] = ()
    """The exceptions from the default. The first rule that matches is used."""
    denied: bool = False
    """True if clients cannot get the plain view."""


_ONLY_PLAIN: Final = ViewTable({}, _PLAIN, PLAIN_VIEW)


def view_table(config: Config) -> ViewTable:
    """Return the views in this config, from the first feature that has views."""
    for definition in section_definitions():
        if definition.views is not None:
            return definition.views(config)
    return _ONLY_PLAIN


class Views:
    """The views of a node. None stands for the plain view when the client has not requested it."""

    def __init__(self, config: Config | None = None, *, local: bool = False) -> None:
        """Create the views.

        Args:
            config: the config of the node.
            local: True for clients of the Unix socket of the node.
        """
        self._table = _ONLY_PLAIN
        self._default: OperationView | None = None
        self._views: dict[str, OperationView] = {}
        self._local = local
        config = config or Config()
        self.local = self if local else Views(config, local=True)
        """The views for clients of the Unix socket, which only the user of the node can open."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply a new config. Open sessions keep their views."""
        self._table = table = view_table(config)
        self._views = {**({} if table.denied else {_PLAIN: PLAIN_VIEW}), **table.views}
        self._default = self._find_view(table.default)
        if not self._local:
            self.local.configure(config)

    @property
    def names(self) -> list[str]:
        return list(self._views)

    def named(self, query: bytes) -> OperationView | None:
        """Return the view that the query of a URL selects. None: the config decides.

        Raises:
            ProtocolError: the query is invalid, or the view is not available.
        """
        if not query:
            return None
        try:
            fields = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise ProtocolError(
                "The query of the URL has more than 50 fields. Remove some of them.",
                INVALID_REQUEST,
            ) from None
        views, namespaces = fields.get("view"), fields.get("namespace")
        if views is None and namespaces is None:
            return None
        view = self.find_view(views[-1]) if views else self._default or self._table.replacement
        if namespaces and view is not PLAIN_VIEW:
            view = OperationView(
                view.mode, view.profile, view.families, view.prefix, namespaces[-1][:255]
            )
        return view

    def find_view(self, name: str) -> OperationView:
        """Return the view with this name.

        Raises:
            ProtocolError: the view does not exist or is denied.
        """
        view = self._views.get(name)
        if view is None and name == _PLAIN:
            raise ProtocolError(
                f"The plain view is not open here. Available views: {', '.join(self._views)}.",
                INVALID_REQUEST,
            )
        if view is None:
            raise ProtocolError(
                f"Unknown view. Available views: {', '.join(self._views)}.", INVALID_REQUEST
            )
        return view

    def choose_view(self, client: str, caller: str) -> OperationView | None:
        """Return the view of a client that selects none."""
        is_interlock = client in _INTERLOCK_CLIENTS and (self._local or not self._table.denied)
        for rule in self._table.rules:
            if is_interlock and not rule.clients:
                continue
            if _matches_any(rule.clients, client) and _matches_any(rule.callers, caller):
                return self._find_view(rule.view)
        return None if is_interlock else self._default

    def _find_view(self, name: str) -> OperationView | None:
        """Return the view with this name, or the replacement where the plain view is denied."""
        view = self._views.get(name)
        if self._table.denied:
            return view or self._table.replacement
        return None if view is PLAIN_VIEW else view


def _matches_any(globs: Sequence[str], name: str) -> bool:
    """Return whether a name matches one of the globs. An empty list matches every name."""
    return not globs or any(matches_glob(glob, name) for glob in globs)
