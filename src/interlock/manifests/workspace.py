"""All drivers, contracts and secrets of a workspace, bound to each other.

Contracts are read first, then drivers, then the two are bound. A file that is broken takes only
itself out: what is wrong with it is said under its path, and everything else works. After a
reload, a DRIVER.md that has become invalid keeps its last valid version in use.
"""

from __future__ import annotations

import copy
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct, structs

from interlock.core.config.problems import BadValue, ConfigError, Problem
from interlock.manifests import lint, placeholders
from interlock.manifests.binding import (
    TOOL_UNAVAILABLE,
    EntryBinding,
    choose_contract,
    shape_faults,
)
from interlock.manifests.document import Caution, ReadResult, read_document, read_source, whole_file
from interlock.manifests.driver_reader import CODE_FILE, MANIFEST_FILE, load_driver
from interlock.manifests.model import (
    DriverManifest,
    ImplementedContract,
    SecretEntry,
    SecretsInventory,
    ServerBlock,
    ToolContract,
)
from interlock.manifests.paths import FileFinder, is_below, is_path
from interlock.manifests.secret_names import find_conflicts, find_entry, unambiguous_names
from interlock.manifests.secrets_reader import INVENTORY_FILE, load_inventory
from interlock.manifests.tool_reader import CONTRACT_FILE, load_contract

# -- When a driver is another one: what must not change without a new major version.
#
# Two majors are two drivers, so somebody who pinned one is not handed the other. A change of the
# protocol's version, of the transport, of where the server comes from, or of what is narrowed
# away is such a change.

_PACKAGE: Final = re.compile(r"(?P<name>@?[^@]+)(?:@(?P<version>.+))?")
_FIRST_NUMBER: Final = re.compile(r"[^0-9]*([0-9]+)")


def major_changes(old: DriverManifest, new: DriverManifest) -> list[str]:
    """What of a new version of a driver demands a new major, in words. Empty: nothing does."""
    changes = []
    if old.kind != new.kind:
        changes.append(f"the kind changes from {old.kind} to {new.kind}")
    if old.protocol_version != new.protocol_version:
        changes.append(
            "the version of MCP changes from "
            f"{old.protocol_version or 'the newest'} to {new.protocol_version or 'the newest'}"
        )
    if old.server is not None and new.server is not None:
        if old.transport != new.transport:
            changes.append(f"the transport changes from {old.transport} to {new.transport}")
        before, after = _origin(old.server), _origin(new.server)
        if before != after:
            changes.append(f"the server changes from {before} to {after}")
    entries = {_tool(entry): entry for entry in old.implements}
    for entry in new.implements:
        earlier = entries.get(_tool(entry))
        if earlier is not None and _narrowing(earlier) != _narrowing(entry):
            changes.append(f"the narrowing of {entry.tool} changes")
    return changes


def successor_problems(old: DriverManifest, new: DriverManifest) -> list[Problem]:
    """Why a driver may not take the place of the one that was registered under its id and major."""
    if old.id != new.id or old.major != new.major:
        return []
    hint = f"write version: {new.major + 1}.0.0, or take the change back"
    return [
        Problem(str(new.file), 0, 0, "version", f"{change}, which needs a new major version", hint)
        for change in major_changes(old, new)
    ]


def _origin(server: ServerBlock) -> str:
    """Where a server comes from, as far as it matters: a package with its major."""
    if server.kind == "npm":
        parts = _PACKAGE.fullmatch(server.package)
        if parts is None:
            return f"npm {server.package}"
        number = _FIRST_NUMBER.match(parts["version"] or "")
        return f"npm {parts['name']}" + (f"@{number[1]}" if number else "")
    if server.kind == "docker":
        place, slash, name = server.image.partition("@")[0].rpartition("/")
        return f"docker {place}{slash}{name.partition(':')[0]}"
    return f"{server.kind} {server.path or server.url}"


def _tool(entry: ImplementedContract) -> str:
    return entry.tool.removeprefix("./")


def _narrowing(entry: ImplementedContract) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(entry.drop_inputs), frozenset(entry.drop_outputs)


# -- Where the manifests of a workspace are, and which of them have changed since they were read.
#
# A file is read again only when its size, time or place on the disk differs, or when somebody
# says that it has changed. Links are followed as long as they stay inside.

T = TypeVar("T")

Fingerprint = tuple[int, ...]

_NOTHING: Final[Fingerprint] = (0, 0, 0)

DEEPEST: Final = 8
"""How far below a folder contracts and inventories are looked for."""
MOST_FILES: Final = 20_000


class ReadCache:
    """What came of every file that was read, by its real path."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Fingerprint, ReadResult[Any]]] = {}
        self._changed: frozenset[str] = frozenset()
        self._used: set[str] = set()
        self.read: list[str] = []
        """The files that were read since `begin`."""

    def begin(self, changed: Iterable[Path] = ()) -> None:
        """A new round. What `changed` is read again, whatever its fingerprint says."""
        self._changed = frozenset(os.path.realpath(path) for path in changed)
        self._used = set()
        self.read = []

    def end(self) -> None:
        """Forget files that nobody asked for in this round."""
        for path in self._known.keys() - self._used:
            del self._known[path]

    def still_as_read(self, seen: Mapping[str, bool]) -> bool:
        """Whether these paths are on the disk as they were when they were looked at."""
        for path, there in seen.items():
            mark = _mark(path)
            known = self._known.get(path)
            if (mark != _NOTHING) != there or (known is not None and known[0][:3] != mark):
                return False
        return True

    def reading(
        self,
        path: str,
        read: Callable[[Path], ReadResult[T]],
        status: os.stat_result | None = None,
        beside: str = "",
    ) -> ReadResult[T] | None:
        """What came of a file; None when it is not there. `status`, if somebody has just looked.

        When the file called `beside` in the same folder changes, it is read again, too.
        """
        try:
            status = status or os.stat(path)
        except OSError:
            return None
        fingerprint: Fingerprint = (status.st_mtime_ns, status.st_size, status.st_ino)
        if beside:
            fingerprint += _mark(f"{os.path.dirname(path)}{os.sep}{beside}")
        known = self._known.get(path)
        fresh = known is not None and known[0] == fingerprint
        if not fresh or (path in self._changed and path not in self._used):
            known = (fingerprint, read(Path(path)))
            self._known[path] = known
            self.read.append(path)
        self._used.add(path)
        assert known is not None
        return known[1]


class ManifestFile(NamedTuple):
    """A manifest on the disk."""

    path: str
    """Its real path, or the link that leads out."""
    inside: bool
    status: os.stat_result | None = None


def children_with(folder: str, name: str, homes: tuple[str, ...]) -> Iterator[ManifestFile]:
    """The files `folder/*/name` in order, and whether each stays inside of `homes`.

    The folder may also be the place of such a file itself.
    """
    own = os.path.join(folder, name)
    if os.path.isfile(own):
        yield _followed(own, homes)
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found[:MOST_FILES]:
        if entry.name.startswith("."):
            continue
        path = f"{entry.path}{os.sep}{name}"
        if entry.is_symlink():
            if os.path.isfile(path):
                yield _followed(path, homes)
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield ManifestFile(path, True, status)
        elif os.path.isfile(path):
            yield _followed(path, homes)


def below(folder: str, name: str) -> list[str]:
    """The real paths of all files called `name` at or below a folder, in order. Links to folders
    are not followed, and neither are links of that name."""
    found: list[str] = []
    waiting = [(folder, 0)]
    while waiting:
        current, depth = waiting.pop()
        try:
            with os.scandir(current) as entries:
                inside = list(entries)
        except OSError:
            continue
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                if depth < DEEPEST and entry.name not in (".git", "node_modules"):
                    waiting.append((entry.path, depth + 1))
            elif entry.name == name and entry.is_file(follow_symlinks=False):
                found.append(entry.path)
        if len(found) > MOST_FILES:
            break
    return sorted(found)


def look(
    folders: Iterable[str],
    names: tuple[str, ...],
    trees: Iterable[tuple[str, str]],
    seen: Iterable[str],
) -> tuple[Any, ...]:
    """What the disk looks like, without reading a file: equal twice means that nothing changed.

    `folders` have folders with files of these `names`, `trees` are folders and the name of the
    files below them that matter, `seen` are single paths, whether there is something or not.
    """
    sight: list[Any] = []
    for folder in folders:
        sight += [_mark(os.path.join(folder, name)) for name in names]
        try:
            with os.scandir(folder) as entries:
                # A folder's own time tells that something in it came or went.
                sight += sorted(
                    (
                        entry.name,
                        _mark(entry.path),
                        *(_mark(f"{entry.path}{os.sep}{name}") for name in names),
                    )
                    for entry in entries
                )
        except OSError:
            sight.append(folder)
    for tree, below_name in trees:
        sight += [(path, _mark(path)) for path in below(tree, below_name)]
    sight += [(path, _mark(path)) for path in seen]
    return tuple(sight)


def _mark(path: str) -> Fingerprint:
    try:
        status = os.stat(path)
    except OSError:
        return _NOTHING
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def leads_out(path: str) -> ReadResult[Any]:
    """What comes of a manifest that is a link to somewhere else."""
    return ReadResult(
        problems=[
            whole_file(
                path,
                "this is a link that leads out of the workspace",
                "keep the file itself in the workspace",
            )
        ]
    )


def _followed(path: str, homes: tuple[str, ...]) -> ManifestFile:
    real = os.path.realpath(path)
    inside = any(is_below(real, home) for home in homes)
    return ManifestFile(real, True) if inside else ManifestFile(path, False)


BROKEN: Final = "config_error"


class ManifestRefusal(Struct, frozen=True):
    """Why a file is not used: a code for programs, problems for people."""

    code: str
    problems: tuple[Problem, ...]


class Workspace:
    """What was found. It does not change: `reload` makes the next one."""

    def __init__(self, settings: _Settings, files: ReadCache) -> None:
        self.root = settings.root
        self.drivers: dict[str, DriverManifest] = {}
        """By `id@major`; only those that can be used."""
        self.contracts: dict[str, ToolContract] = {}
        """By `id@major`."""
        self.bindings: dict[str, tuple[EntryBinding, ...]] = {}
        """What each driver serves, by the driver's `id@major`."""
        self.serving: dict[str, tuple[str, ...]] = {}
        """Which drivers serve a contract, by the contract's `id@major`."""
        self.secrets = SecretsInventory()
        self.secret_names: dict[str, str] = {}
        """The name that a manifest uses for a secret → its slug."""
        self.refused: dict[Path, ManifestRefusal] = {}
        self.cautions: dict[Path, tuple[Caution, ...]] = {}
        self.registered: dict[str, DriverManifest] = dict(settings.registered)
        """The last version of each driver that was accepted, to hold the next one against."""
        self.read_files: tuple[Path, ...] = ()
        """The files that were read to make this, rather than known from before."""
        self._settings = settings
        self._files = files
        self._seen: tuple[str, ...] = ()
        self._sight: tuple[Any, ...] = ()

    @property
    def problems(self) -> dict[Path, tuple[Problem, ...]]:
        """Everything that is wrong, by file."""
        return {path: refusal.problems for path, refusal in self.refused.items()}

    def versions(self, contract_id: str) -> list[ToolContract]:
        """All majors of a contract."""
        return [one for one in self.contracts.values() if one.id == contract_id]

    def reload(self, changed: Iterable[Path] = ()) -> Workspace:
        """The workspace as it is now. Only files that have changed are read again.

        What is said to have `changed` is read again whatever the disk says.
        """
        valid = {one.file: one for one in self.drivers.values()}
        settings = structs.replace(self._settings, registered=self.registered, valid=valid)
        changed = tuple(changed)
        if not changed and _look(settings, self._seen) == self._sight:
            same = copy.copy(self)
            same.read_files = ()
            return same
        return _gather(settings, self._files, changed)


class _Settings(Struct, frozen=True):
    root: Path
    folders: tuple[str, ...]
    contract_folders: tuple[str, ...]
    secrets_folder: str
    plain_http: bool
    registered: Mapping[str, DriverManifest]
    valid: Mapping[Path, DriverManifest] = {}
    """The drivers before a reload, by their files."""


def load_workspace(
    root: Path,
    *,
    folders: Sequence[str | Path] = (".drivers",),
    contract_folders: Sequence[str | Path] = ("tools", ".tools"),
    secrets_folder: str | Path = ".secrets",
    plain_http: bool = False,
    registered: Mapping[str, DriverManifest] | None = None,
) -> Workspace:
    """Reads everything. Folders are relative to `root`, or stand anywhere.

    `registered` are drivers as they were accepted before, by `id@major`: one that changes what
    needs a new major, and has none, is refused.
    """
    real = os.path.realpath(root)

    def places(names: Sequence[str | Path]) -> tuple[str, ...]:
        return tuple(os.path.realpath(os.path.join(real, name)) for name in names)

    settings = _Settings(
        root=Path(real),
        folders=places(folders),
        contract_folders=places(contract_folders),
        secrets_folder=os.path.realpath(os.path.join(real, secrets_folder)),
        plain_http=plain_http,
        registered=registered or {},
    )
    return _gather(settings, ReadCache(), ())


def _gather(settings: _Settings, files: ReadCache, changed: Iterable[Path]) -> Workspace:
    workspace = Workspace(settings, files)
    files.begin(changed)
    # What changes while files are read must look changed the next time.
    before = _look(settings, ())
    gathering = _Gathering(workspace, settings, files)
    gathering.run()
    files.end()
    workspace.read_files = tuple(Path(path) for path in files.read)
    if files.still_as_read(gathering.seen):
        workspace._seen = tuple(sorted(gathering.seen))
        workspace._sight = (*before, *look((), (), (), workspace._seen))
    return workspace


def _look(settings: _Settings, seen: Iterable[str]) -> tuple[Any, ...]:
    trees = [(folder, CONTRACT_FILE) for folder in settings.contract_folders]
    trees.append((settings.secrets_folder, INVENTORY_FILE))
    return look(settings.folders, (MANIFEST_FILE, CODE_FILE), trees, seen)


class _Gathering:
    """One walk: contracts, drivers, secrets, bindings."""

    def __init__(self, workspace: Workspace, settings: _Settings, files: ReadCache) -> None:
        self._found = workspace
        self._settings = settings
        self._files = files
        self._finder = FileFinder(settings.root)
        self._by_id: dict[str, list[ToolContract]] = {}
        self._contracts: dict[str, ToolContract | None] = {}
        self._inventories: dict[str, list[Problem]] = {}
        """By path: what is wrong with it."""
        self._secrets: list[SecretEntry] = []

    def run(self) -> None:
        for folder in self._settings.contract_folders:
            for path in below(folder, CONTRACT_FILE):
                self._contract(path)
        drivers = self._drivers()
        for path in below(self._settings.secrets_folder, INVENTORY_FILE):
            self._inventory(path)
        inventories = {driver.file: self._own_inventory(driver) for driver in drivers}
        self._found.secrets = SecretsInventory(self._only_once())
        self._found.secret_names = unambiguous_names(self._found.secrets)
        for driver in drivers:
            self._bind(driver, self._wrong_with(driver, inventories[driver.file]))

    @property
    def seen(self) -> Mapping[str, bool]:
        """The single files that something depended on, beside those in the folders."""
        return self._finder.seen

    def _refuse(self, path: str | Path, code: str, problems: Sequence[Problem]) -> None:
        self._found.refused[Path(path)] = ManifestRefusal(code, tuple(problems))

    def _caution(self, path: Path, cautions: Iterable[Caution]) -> None:
        both = (*self._found.cautions.get(path, ()), *cautions)
        if both:
            self._found.cautions[path] = both

    def _contract(self, path: str) -> ToolContract | None:
        """The contract in a file, made known under its id; None when it cannot be used."""
        if path not in self._contracts:
            self._contracts[path] = self._read_contract(path)
        return self._contracts[path]

    def _read_contract(self, path: str) -> ToolContract | None:
        reading = self._files.reading(path, load_contract)
        if reading is None:
            return None
        contract = reading.value
        if contract is None:
            self._refuse(path, BROKEN, reading.problems)
            return None
        known = self._found.contracts.get(contract.key)
        if known is None:
            self._found.contracts[contract.key] = contract
            self._by_id.setdefault(contract.id, []).append(contract)
            self._caution(contract.file, reading.cautions)
            return contract
        if known.digest == contract.digest:
            return known
        self._refuse(
            path,
            BROKEN,
            [
                Problem(
                    path, 0, 0, "id", f"{contract.key} is declared already in {known.file}",
                    "keep one of the two, or give this one another id or major version",
                )
            ],
        )  # fmt: skip
        return None

    def _drivers(self) -> list[DriverManifest]:
        root, plain_http = self._settings.root, self._settings.plain_http

        def read(path: Path) -> ReadResult[DriverManifest]:
            return load_driver(path, root=root, plain_http=plain_http)

        drivers: dict[str, DriverManifest] = {}
        invalid: list[DriverManifest] = []
        for folder in self._settings.folders:
            for path, inside, status in children_with(folder, MANIFEST_FILE, (folder, str(root))):
                reading = (
                    self._files.reading(path, read, status, CODE_FILE)
                    if inside
                    else leads_out(path)
                )
                if reading is None:
                    continue
                driver = reading.value
                self._caution(Path(path), reading.cautions)
                if driver is None:
                    self._refuse(path, BROKEN, reading.problems)
                    # Not for a link that leads out: that is no slip in the text.
                    if inside and (last := self._settings.valid.get(Path(path))):
                        invalid.append(last)
                elif driver.key in drivers:
                    if drivers[driver.key].file != driver.file:
                        self._refuse(path, BROKEN, [_twice(driver, drivers[driver.key])])
                else:
                    drivers[driver.key] = driver
        for last in invalid:
            drivers.setdefault(last.key, last)
        return list(drivers.values())

    def _inventory(self, path: str) -> None:
        """Adds the secrets of a file to the workspace's."""
        if path in self._inventories:
            return
        reading = self._files.reading(path, load_inventory)
        problems: list[Problem] = []
        if reading is not None and reading.value is None:
            problems = reading.problems
        elif reading is not None and reading.value is not None:
            self._secrets += reading.value.entries.values()
        self._inventories[path] = problems

    def _only_once(self) -> dict[str, SecretEntry]:
        """The secrets that one inventory alone lists. What two list is nobody's: whoever comes
        first could take over the other's name, and say who may have the secret."""
        doubles = find_conflicts(self._secrets)
        for entry in self._secrets:
            for claim, other in doubles.get(id(entry), ())[:1]:
                self._inventories.setdefault(str(entry.file), []).append(
                    Problem(
                        str(entry.file), entry.line, 1, "secrets",
                        f"{claim} is listed here and in {other.file}, and is used by neither",
                        "keep one of the two; drivers can share one inventory (auth.ref)",
                    )
                )  # fmt: skip
        for path, problems in self._inventories.items():
            if problems:
                self._refuse(path, BROKEN, problems)
        return {entry.slug: entry for entry in self._secrets if id(entry) not in doubles}

    def _own_inventory(self, driver: DriverManifest) -> str | Problem:
        """Reads what `auth.ref` names; where it is. Empty: it names none."""
        if driver.auth is None or not driver.auth.ref:
            return ""
        try:
            path = self._finder.find(driver.auth.ref, str(driver.folder))
        except BadValue as bad:
            return _problem(driver, "auth.ref", bad.message, bad.hint)
        self._inventory(path)
        return path

    def _wrong_with(self, driver: DriverManifest, inventory: str | Problem) -> list[Problem]:
        """What is wrong with its inventory is wrong with the driver."""
        if isinstance(inventory, Problem):
            return [inventory]
        problems = self._inventories.get(inventory)
        if not problems or driver.auth is None:
            return []
        return [
            _problem(
                driver, "auth.ref", f"{driver.auth.ref} cannot be used: {problems[0].message}",
                f"see {problems[0].file}",
            )
        ]  # fmt: skip

    def _bind(self, driver: DriverManifest, problems: list[Problem]) -> None:
        found = self._found
        code = BROKEN
        problems = problems or self._unknown_secrets(driver)
        driver, more = self._with_runner(driver)
        problems += more
        bindings: list[EntryBinding] = []
        for index, entry in enumerate(driver.implements):
            try:
                contract = self._served(driver, entry)
            except BadValue as bad:
                code = TOOL_UNAVAILABLE
                place = f"implements[{index}]"
                problems.append(
                    Problem(str(driver.file), entry.line, 1, place, bad.message, bad.hint)
                )
                continue
            problems += [
                Problem(
                    str(driver.file), entry.line, 1, f"implements[{index}].{fault.field}",
                    f"{contract.id}: {fault.message}", fault.hint,
                )
                for fault in shape_faults(contract, entry)
            ]  # fmt: skip
            bindings.append(EntryBinding(entry, contract))
        served = [binding.contract.key for binding in bindings]
        problems += [
            Problem(
                str(driver.file), binding.entry.line, 1, "implements",
                f"{binding.contract.key} is served by two entries", "keep one of the two",
            )
            for index, binding in enumerate(bindings)
            if binding.contract.key in served[:index]
        ]  # fmt: skip
        earlier = found.registered.get(driver.key)
        if earlier is not None and earlier.digest != driver.digest:
            problems += successor_problems(earlier, driver)
        if problems:
            self._refuse(driver.file, code, problems)
            return
        self._caution(driver.file, lint.lint_bindings(driver, bindings, self._skill_exists))
        found.drivers[driver.key] = found.registered[driver.key] = driver
        found.bindings[driver.key] = tuple(bindings)
        for key in served:
            found.serving[key] = (*found.serving.get(key, ()), driver.key)

    def _served(self, driver: DriverManifest, entry: ImplementedContract) -> ToolContract:
        """The contract of an entry. Raises BadValue."""
        if not is_path(entry.tool):
            versions = self._by_id.get(entry.tool)
            if not versions:
                raise BadValue(
                    f"there is no contract {entry.tool}", "check the id, or write a TOOL.md for it"
                )
            return choose_contract(entry.tool, entry.version, versions)
        path = self._finder.find(entry.tool, str(driver.folder))
        contract = self._contract(path)
        if contract is None:
            raise BadValue(f"the contract in {entry.tool} cannot be used", f"see {path}")
        return choose_contract(contract.id, entry.version, [contract])

    def _unknown_secrets(self, driver: DriverManifest) -> list[Problem]:
        found = []
        for name in secrets_used(driver):
            if name in self._found.secret_names:
                continue
            message = f"there is no secret {name} in any inventory of the workspace"
            hint = "list it in the SECRETS.md that auth.ref names"
            try:
                find_entry(name, self._found.secrets)
            except BadValue as bad:
                message, hint = bad.message, bad.hint
            found.append(_problem(driver, "server", message, hint))
        return found

    def _with_runner(self, driver: DriverManifest) -> tuple[DriverManifest, list[Problem]]:
        """The driver with the RUNNER.md in it that it names."""
        if not isinstance(driver.runner, str):
            return driver, []
        try:
            path = self._finder.find(driver.runner, str(driver.folder))
            block = read_document(read_source(Path(path)).text, path).value
        except BadValue as bad:
            return driver, [_problem(driver, "runner", bad.message, bad.hint)]
        except ConfigError as error:
            return driver, [_problem(driver, "runner", error.problems[0].message, f"see {path}")]
        return structs.replace(driver, runner=block), []

    def _skill_exists(self, driver: DriverManifest, path: str) -> bool:
        try:
            self._finder.find(path, str(driver.folder))
        except BadValue:
            return False
        return True


def secrets_used(driver: DriverManifest) -> tuple[str, ...]:
    """The names of the secrets that are needed to start a driver's server or to reach it."""
    server = driver.server
    if server is None:
        return ()
    found: dict[str, None] = {}
    for text in server.env.values():
        found.update(dict.fromkeys(placeholders.find_secret_names(text)))
    if server.auth is not None:
        found[server.auth.secret] = None
    elif server.kind == "remote" and driver.auth is not None and driver.auth.state_env:
        found[driver.auth.state_env[0]] = None
    return tuple(found)


def _twice(driver: DriverManifest, other: DriverManifest) -> Problem:
    return _problem(
        driver,
        "id",
        f"{driver.key} is declared already in {other.file}",
        "give this one another id or major version",
    )


def _problem(driver: DriverManifest, path: str, message: str, hint: str) -> Problem:
    return Problem(str(driver.file), 0, 0, path, message, hint)
