"""Which view a client sees: every tool, or AQL's endpoints.

Whoever asks in its URL (`?view=aql`) gets what it asks for; else the config says it, by client and
caller. Where the config denies the plain view, nobody gets it by asking, by default or by what it
calls itself, but for this machine's command line, which comes by the node's own socket. What a view
shows is made elsewhere.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from interlock.core.config.aql import AqlConfig, ClientView, FamilyConfig
from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.protocol.aql_terms import PLAIN, Category, Face, Family, Mode, fits

CHOSEN: Final = "notifications/interlock/view"
"""How a client of lines, which has no URL, names a view before it says anything else."""
_OURSELVES: Final = frozenset({"interlock", "interlock-cli"})
"""What nodes and the command line call themselves as clients: they want tools."""
CRUDE: Final = "crude"
SEMANTIC: Final = "semantic"
_BUILT_IN: Final[dict[str, dict[str, FamilyConfig]]] = {
    CRUDE: {
        "create": FamilyConfig(categories=["CREATE"]),
        "read": FamilyConfig(categories=["READ"]),
        "update": FamilyConfig(categories=["UPDATE"]),
        "delete": FamilyConfig(categories=["DELETE"]),
        "execute": FamilyConfig(categories=["EXECUTE"]),
    },
    SEMANTIC: {
        "discover": FamilyConfig(operations=["introspect"]),
        "query": FamilyConfig(categories=["READ"]),
        "manage": FamilyConfig(categories=["CREATE", "UPDATE", "DELETE"]),
        "operate": FamilyConfig(categories=["EXECUTE"]),
    },
}
_MODES: Final[dict[str, Mode]] = {
    "aql": "semantic",
    "aql-single": "single",
    "aql-all": "all",
    "auto": "auto",
}


class Views:
    """The views of one node. None stands for the plain one, where nobody asked for it."""

    def __init__(self, config: AqlConfig | None = None, *, local: bool = False) -> None:
        """`local`: for who comes by the node's own socket."""
        self._clients: list[ClientView] = []
        self._default: Face | None = None
        self._faces: dict[str, Face] = {}
        self._denied = False
        self._local = local
        config = config or AqlConfig()
        self.local = self if local else Views(config, local=True)
        """The same for who comes by the node's own socket: only this user gets there."""
        self.configure(config)

    def configure(self, config: AqlConfig) -> None:
        """What the config says from now on. Who is there already keeps what it has."""
        profiles = {name: dict(one.families) for name, one in config.profiles.items()}
        faces = {"plain": PLAIN}
        crude = _families(_BUILT_IN[CRUDE], config.prefix)
        for name, mode in _MODES.items():
            faces[name] = Face(mode, CRUDE, crude, config.prefix)
        for name, families in {**_BUILT_IN, **profiles}.items():
            faces[name] = Face("semantic", name, _families(families, config.prefix), config.prefix)
        self._denied = config.plain == "deny"
        if self._denied:
            # Neither by name, nor because it is shorter.
            del faces["plain"]
            faces["auto"] = faces["aql"]
        self._faces = faces
        self._clients = config.clients
        self._default = self._seen(config.view)
        if not self._local:
            self.local.configure(config)

    @property
    def names(self) -> list[str]:
        return list(self._faces)

    def named(self, query: bytes) -> Face | None:
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
        face = self.by_name(views[-1]) if views else self._default or self._faces["aql"]
        if namespaces and face is not PLAIN:
            face = Face(face.mode, face.profile, face.families, face.prefix, namespaces[-1][:255])
        return face

    def by_name(self, name: str) -> Face:
        """A view that somebody names. Raises ProtocolError."""
        face = self._faces.get(name)
        if face is None and name == "plain":
            raise ProtocolError(
                f"The plain view is not open here; there are {', '.join(self._faces)}.",
                INVALID_REQUEST,
            )
        if face is None:
            raise ProtocolError(
                f"There is no such view; there are {', '.join(self._faces)}.", INVALID_REQUEST
            )
        return face

    def of_client(self, client: str, caller: str) -> Face | None:
        """What somebody sees who asks for nothing."""
        ourselves = client in _OURSELVES and (self._local or not self._denied)
        for rule in self._clients:
            if ourselves and not rule.clients:
                continue
            if _fits_one(rule.clients, client) and _fits_one(rule.callers, caller):
                return self._seen(rule.view)
        return None if ourselves else self._default

    def _seen(self, name: str) -> Face | None:
        face = self._faces.get(name)
        if self._denied:
            return face or self._faces["aql"]
        return None if face is PLAIN else face


def _fits_one(globs: list[str], name: str) -> bool:
    return not globs or any(fits(glob, name) for glob in globs)


def _families(families: dict[str, FamilyConfig], prefix: str) -> tuple[Family, ...]:
    return tuple(
        Family(
            name,
            f"{prefix}mcp_aql_{name}",
            frozenset(Category(category) for category in family.categories),
            tuple(family.operations),
        )
        for name, family in families.items()
    )
