"""Which view a client sees: every tool, or what a feature shows instead (AQL's endpoints).

Whoever asks in its URL (`?view=aql`) gets what it asks for; else the config says it, by client and
caller. Where the config denies the plain view, nobody gets it by asking, by default or by what it
calls itself, but for this machine's command line, which comes by the node's own socket. What a view
shows is made elsewhere.
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
"""How a client of lines, which has no URL, names a view before it says anything else."""
_OURSELVES: Final = frozenset({"interlock", "interlock-cli"})
"""What nodes and the command line call themselves as clients: they want tools."""
_PLAIN: Final = "plain"


class ViewRule(NamedTuple):
    """Who sees which view. Every list that is not empty must fit."""

    view: str
    clients: Sequence[str] = ()
    """Globs of client names."""
    callers: Sequence[str] = ()
    """Globs of callers."""


class ViewTable(NamedTuple):
    """The views of a feature, and who sees which."""

    faces: Mapping[str, OperationView]
    """By name; without the plain one."""
    default: str
    """What clients see that ask for nothing."""
    instead: OperationView
    """What replaces the plain view: where it is denied, and for a namespace without a view."""
    rules: Sequence[ViewRule] = ()
    """Who sees something else than the default: the first rule that fits."""
    denied: bool = False
    """Whether nobody gets the plain view."""


_ONLY_PLAIN: Final = ViewTable({}, _PLAIN, PLAIN_VIEW)


def view_table(config: Config) -> ViewTable:
    """The views that this config has, of the first feature that has any."""
    for definition in section_definitions():
        if definition.views is not None:
            return definition.views(config)
    return _ONLY_PLAIN


class Views:
    """The views of one node. None stands for the plain one, where nobody asked for it."""

    def __init__(self, config: Config | None = None, *, local: bool = False) -> None:
        """`local`: for who comes by the node's own socket."""
        self._table = _ONLY_PLAIN
        self._default: OperationView | None = None
        self._faces: dict[str, OperationView] = {}
        self._local = local
        config = config or Config()
        self.local = self if local else Views(config, local=True)
        """The same for who comes by the node's own socket: only this user gets there."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """What the config says from now on. Who is there already keeps what it has."""
        self._table = table = view_table(config)
        self._faces = {**({} if table.denied else {_PLAIN: PLAIN_VIEW}), **table.faces}
        self._default = self._seen(table.default)
        if not self._local:
            self.local.configure(config)

    @property
    def names(self) -> list[str]:
        return list(self._faces)

    def named(self, query: bytes) -> OperationView | None:
        """What a URL asks for. None: it leaves it to the config. Raises ProtocolError."""
        if not query:
            return None
        try:
            asked = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=50)
        except ValueError:
            raise ProtocolError("The URL says too many things.", INVALID_REQUEST) from None
        views, namespaces = asked.get("view"), asked.get("namespace")
        if views is None and namespaces is None:
            return None
        face = self.by_name(views[-1]) if views else self._default or self._table.instead
        if namespaces and face is not PLAIN_VIEW:
            face = OperationView(
                face.mode, face.profile, face.families, face.prefix, namespaces[-1][:255]
            )
        return face

    def by_name(self, name: str) -> OperationView:
        """A view that somebody names. Raises ProtocolError."""
        face = self._faces.get(name)
        if face is None and name == _PLAIN:
            raise ProtocolError(
                f"The plain view is not open here; there are {', '.join(self._faces)}.",
                INVALID_REQUEST,
            )
        if face is None:
            raise ProtocolError(
                f"There is no such view; there are {', '.join(self._faces)}.", INVALID_REQUEST
            )
        return face

    def of_client(self, client: str, caller: str) -> OperationView | None:
        """What somebody sees who asks for nothing."""
        ourselves = client in _OURSELVES and (self._local or not self._table.denied)
        for rule in self._table.rules:
            if ourselves and not rule.clients:
                continue
            if _fits_one(rule.clients, client) and _fits_one(rule.callers, caller):
                return self._seen(rule.view)
        return None if ourselves else self._default

    def _seen(self, name: str) -> OperationView | None:
        face = self._faces.get(name)
        if self._table.denied:
            return face or self._table.instead
        return None if face is PLAIN_VIEW else face


def _fits_one(globs: Sequence[str], name: str) -> bool:
    return not globs or any(matches_glob(glob, name) for glob in globs)
