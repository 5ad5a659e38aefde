"""Whose proofs count: public keys of people and policy engines, secrets shared with services.

They come from the config and from whoever enrolled with this node. A key that cannot be read is
said when the config is, not when somebody waits.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config import resolve
from interlock.config.trust import AnchorConfig, ApprovalsConfig
from interlock.errors import CONFIG, InterlockError

OPERATOR: Final = "operator"
POLICY_ENGINE: Final = "policy_engine"
SERVICE: Final = "service"
SHORTEST_SECRET: Final = 32
"""Bytes: what signs with fewer can be guessed."""
_MOST_KEY: Final = 64 * 1024


class Anchor(msgspec.Struct, frozen=True):
    """Somebody whose proofs count."""

    name: str
    kind: str = OPERATOR
    key: Any = None
    """The public key (joserfc), or the shared secret."""
    algorithms: tuple[str, ...] = ()
    """The only ones that its proofs may be signed with."""
    tools: tuple[str, ...] = ()
    """Globs of tools that it may confirm. Empty: all."""
    caller: str = ""
    """Which caller that is, if it is one."""

    def __repr__(self) -> str:
        return f"Anchor({self.name}, {self.kind})"

    def may_confirm(self, tool: str) -> bool:
        return not self.tools or any(fnmatchcase(tool, glob) for glob in self.tools)

    def is_caller(self, *names: str) -> bool:
        """Whether one of these callers is the one whose anchor this is."""
        return any(name and name in (self.name, self.caller) for name in names)


class Anchors:
    """All of them. `reload` when the config changed or somebody enrolled."""

    def __init__(
        self,
        config: ApprovalsConfig,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        enrolled: Callable[[], Iterable[Anchor]] = tuple,
    ) -> None:
        """`enrolled`: those who did so with this node. Raises InterlockError for a bad key."""
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._enrolled = enrolled
        self._configured: tuple[Anchor, ...] = ()
        self._all: tuple[Anchor, ...] = ()
        self._stamp: tuple[object, ...] = ()
        self.reload()

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def named(self, name: str) -> list[Anchor]:
        """The keys of one person or program."""
        return [one for one in self._all if one.name == name]

    def configure(self, config: ApprovalsConfig) -> None:
        """Raises InterlockError, and changes nothing, when a key of it cannot be used."""
        stamp, found = self._stamped(config), self._read(config)
        self._config, self._stamp, self._configured = config, stamp, found
        self.heed()

    def reload(self) -> None:
        """Read every key again, and ask who is enrolled. Raises InterlockError."""
        self._stamp = self._stamped(self._config)
        self._configured = self._read(self._config)
        self.heed()

    def changed(self) -> Callable[[], None] | None:
        """Read the key files again if they are others than before. It waits for the disk, and may
        be called on any thread. Returns what makes that count, which is for the event loop; None:
        nothing changed. Raises InterlockError, and changes nothing, for a bad key."""
        config = self._config
        stamp = self._stamped(config)
        if stamp == self._stamp:
            return None
        found = self._read(config)

        def take() -> None:
            if self._config is config:
                self._stamp, self._configured = stamp, found
                self.heed()

        return take

    def heed(self) -> None:
        """Count those who are enrolled now, beside those of the config. Reads no file."""
        enrolled = tuple(self._enrolled()) if self._config.enrolled else ()
        self._all = (*self._configured, *enrolled)

    def _read(self, config: ApprovalsConfig) -> tuple[Anchor, ...]:
        found = tuple(
            read_anchor(one, environ=self._environ, base_dir=self._base_dir)
            for one in config.anchors
        )
        names = Counter(one.name for one in found)
        twice = next((name for name, times in names.items() if times > 1), None)
        if twice is not None:
            raise InterlockError(
                CONFIG, f"Two trust anchors are called {twice!r}: give each a name of its own."
            )
        return found

    def _stamped(self, config: ApprovalsConfig) -> tuple[object, ...]:
        """By what one sees whether a key file is another one."""
        stamps: list[object] = []
        for one in config.anchors:
            if one.key is not None:
                try:
                    status = _key_path(one.key, self._base_dir).stat()
                except OSError as error:
                    stamps.append(error.errno)
                else:
                    stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(stamps)


def must_have_anchors(config: ApprovalsConfig, *, gates: bool) -> None:
    """Raises InterlockError for a config that stops calls which nobody could ever confirm."""
    if gates and not config.anchors and not config.enrolled:
        raise InterlockError(
            CONFIG,
            "The policy makes calls wait for a human, and nobody's proof counts: name one under "
            "`approvals.anchors`, or set `approvals.enrolled: true` and run `interlock keys new`.",
        )


def read_anchor(config: AnchorConfig, *, environ: Mapping[str, str], base_dir: Path) -> Anchor:
    """An anchor of the config. Raises InterlockError."""
    given: dict[str, Any] = {
        "name": config.name,
        "kind": config.kind,
        "tools": tuple(config.tools),
        "caller": config.caller or "",
    }
    if (config.key is None) == (config.secret is None):
        raise _bad(config.name, "needs a `key` or, if it is a service, a `secret`: one of them")
    if config.secret is not None:
        if config.kind != SERVICE:
            raise _bad(config.name, "may not have a `secret`: only a service shares one")
        secret = resolve(config.secret, environ=environ, base_dir=base_dir).encode()
        if len(secret) < SHORTEST_SECRET:
            raise _bad(config.name, f"has a secret of fewer than {SHORTEST_SECRET} bytes")
        from joserfc.jwk import OctKey

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Anchor(key=OctKey.import_key(secret), algorithms=("HS256",), **given)
    assert config.key is not None
    path = _key_path(config.key, base_dir)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_KEY)
    except OSError as error:
        raise _bad(config.name, f"has a key that cannot be read ({error.strerror})") from None
    key, algorithms = public_key(text, config.name)
    return Anchor(key=key, algorithms=algorithms, **given)


def _key_path(key: str, base_dir: Path) -> Path:
    return base_dir / Path(key).expanduser()


def public_key(text: bytes | str | dict[str, Any], name: str) -> tuple[Any, tuple[str, ...]]:
    """A public key (PEM, or a JWK as text or members) and how it signs. Raises InterlockError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey

    source: Any = text
    if isinstance(text, bytes | str) and text.strip()[:1] in (b"{", "{"):
        try:
            source = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _bad(name, "has a key that is no JWK") from None
    algorithms = {"Ed25519": ("EdDSA", "Ed25519"), "P-256": ("ES256",)}
    for kind in (OKPKey, ECKey):
        try:
            key = kind.import_key(source)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        except Exception as wrong:
            # The library lets exceptions of the parser below it through.
            raise _bad(name, f"has a key that cannot be read ({type(wrong).__name__})") from None
        if key.curve_name in algorithms:
            public = kind.import_key(key.as_dict(private=False))
            return public, algorithms[key.curve_name]
    raise _bad(name, "needs an Ed25519 or P-256 public key, as PEM or JWK")


def _bad(name: str, why: str) -> InterlockError:
    return InterlockError(CONFIG, f"The trust anchor {name!r} {why}.")
