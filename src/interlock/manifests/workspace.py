"""The drivers, contracts and secrets of a workspace, and the bindings between them.

Contracts are read first, then drivers, then drivers are bound to contracts. An invalid file does
not affect other files: its problems are listed by its path. If a DRIVER.md has become invalid at a
reload, its last valid version is used.
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

from interlock.core.config.problems import ConfigError, InvalidValueError, Problem
from interlock.manifests import lint, placeholders
from interlock.manifests.binding import (
    TOOL_UNAVAILABLE,
    EntryBinding,
    choose_contract,
    shape_faults,
)
from interlock.manifests.document import (
    Caution,
    ReadResult,
    file_problem,
    read_document,
    read_source,
)
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

# -- Changes of a driver that require a new major version.
#
# Two major versions are two drivers, so a caller that pinned one version does not get the other. A
# change of the protocol version, the transport, the origin of the server, or the narrowing requires
# a new major version.

_PACKAGE: Final = re.compile(r"(?P<name>@?[^@]+)(?:@(?P<version>.+))?")
_FIRST_NUMBER: Final = re.compile(r"[^0-9]*([0-9]+)")


def major_changes(old: DriverManifest, new: DriverManifest) -> list[str]:
    """Return the changes of a driver that require a new major version, as clauses for messages."""
    changes = []
    if old.kind != new.kind:
        changes.append(f"the kind changes from {old.kind} to {new.kind}")
    if old.protocol_version != new.protocol_version:
        changes.append(
            "the MCP version changes from "
            f"{old.protocol_version or 'the newest'} to {new.protocol_version or 'the newest'}"
        )
    if old.server is not None and new.server is not None:
        if old.transport != new.transport:
            changes.append(f"the transport changes from {old.transport} to {new.transport}")
        before, after = _server_origin(old.server), _server_origin(new.server)
        if before != after:
            changes.append(f"the server changes from {before} to {after}")
    entries = {_tool_name(entry): entry for entry in old.implements}
    for entry in new.implements:
        earlier = entries.get(_tool_name(entry))
        if earlier is not None and _narrowing(earlier) != _narrowing(entry):
            changes.append(f"the narrowing of {entry.tool} changes")
    return changes


def successor_problems(old: DriverManifest, new: DriverManifest) -> list[Problem]:
    """Return the problems of a driver that replaces the registered one of the same id and major."""
    if old.id != new.id or old.major != new.major:
        return []
    hint = f"write version: {new.major + 1}.0.0, or undo the change"
    return [
        Problem(
            str(new.file), 0, 0, "version", f"{change}, which requires a new major version", hint
        )
        for change in major_changes(old, new)
    ]


def _server_origin(server: ServerBlock) -> str:
    """Return the origin of a server. Of a package, the major version is a part of it."""
    if server.kind == "npm":
        parts = _PACKAGE.fullmatch(server.package)
        if parts is None:
            return f"npm {server.package}"
        number = _FIRST_NUMBER.match(parts["version"] or "")
        return f"npm {parts['name']}" + (f"@{number[1]}" if number else "")
    if server.kind == "docker":
        registry, slash, name = server.image.partition("@")[0].rpartition("/")
        return f"docker {registry}{slash}{name.partition(':')[0]}"
    return f"{server.kind} {server.path or server.url}"


def _tool_name(entry: ImplementedContract) -> str:
    return entry.tool.removeprefix("./")


def _narrowing(entry: ImplementedContract) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(entry.drop_inputs), frozenset(entry.drop_outputs)


# -- The manifest files of a workspace, and their changes since they were read.
#
# A file is read again only if its size, time or inode differs, or if the caller reports a change.
# Links are followed as long as they stay inside the workspace.

T = TypeVar("T")

Fingerprint = tuple[int, ...]

_MISSING: Final[Fingerprint] = (0, 0, 0)

MAX_DEPTH: Final = 8
"""The levels of folders that are searched for contracts and inventories."""
MAX_FILES: Final = 20_000


class ReadCache:
    """The results of all files that were read, by real path."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Fingerprint, ReadResult[Any]]] = {}
        self._changed: frozenset[str] = frozenset()
        self._used: set[str] = set()
        self.read: list[str] = []
        """The files that were read since `begin`."""

    def begin(self, changed: Iterable[Path] = ()) -> None:
        """Begin a round. Files in `changed` are read again even if their fingerprints are equal."""
        self._changed = frozenset(os.path.realpath(path) for path in changed)
        self._used = set()
        self.read = []

    def end(self) -> None:
        """End a round. Remove the results of files that were not requested in it."""
        for path in self._entries.keys() - self._used:
            del self._entries[path]

    def is_unchanged(self, seen: Mapping[str, bool]) -> bool:
        """Return whether paths are unchanged on the disk.

        Args:
            seen: maps each path to whether it existed.
        """
        for path, existed in seen.items():
            fingerprint = _fingerprint(path)
            entry = self._entries.get(path)
            if (fingerprint != _MISSING) != existed:
                return False
            if entry is not None and entry[0][:3] != fingerprint:
                return False
        return True

    def load(
        self,
        path: str,
        read: Callable[[Path], ReadResult[T]],
        status: os.stat_result | None = None,
        companion: str = "",
    ) -> ReadResult[T] | None:
        """Return the result of a file, from the cache if it is unchanged. None: it does not exist.

        Args:
            status: the current status of the file. None: it is determined.
            companion: the name of another file in the folder, whose changes count as well.
        """
        try:
            status = status or os.stat(path)
        except OSError:
            return None
        fingerprint: Fingerprint = (status.st_mtime_ns, status.st_size, status.st_ino)
        if companion:
            fingerprint += _fingerprint(f"{os.path.dirname(path)}{os.sep}{companion}")
        entry = self._entries.get(path)
        is_current = entry is not None and entry[0] == fingerprint
        if not is_current or (path in self._changed and path not in self._used):
            entry = (fingerprint, read(Path(path)))
            self._entries[path] = entry
            self.read.append(path)
        self._used.add(path)
        assert entry is not None
        return entry[1]


class ManifestFile(NamedTuple):
    """The path of a manifest file."""

    path: str
    """The real path, or the path of a link that leads out of the workspace."""
    inside: bool
    status: os.stat_result | None = None


def find_in_subfolders(folder: str, name: str, homes: tuple[str, ...]) -> Iterator[ManifestFile]:
    """Yield the file `name` of a folder, and of each of its subfolders, in order.

    Args:
        homes: the folders that links may lead to.
    """
    path = os.path.join(folder, name)
    if os.path.isfile(path):
        yield _follow_link(path, homes)
    try:
        with os.scandir(folder) as entries:
            sorted_entries = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in sorted_entries[:MAX_FILES]:
        if entry.name.startswith("."):
            continue
        path = f"{entry.path}{os.sep}{name}"
        if entry.is_symlink():
            if os.path.isfile(path):
                yield _follow_link(path, homes)
            continue
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield ManifestFile(path, True, status)
        elif os.path.isfile(path):
            yield _follow_link(path, homes)


def find_in_tree(folder: str, name: str) -> list[str]:
    """Return the real paths of all files `name` in a folder and its subfolders, sorted. Links are
    not followed."""
    paths: list[str] = []
    queue = [(folder, 0)]
    while queue:
        current, depth = queue.pop()
        try:
            with os.scandir(current) as iterator:
                entries = list(iterator)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and entry.name not in (".git", "node_modules"):
                    queue.append((entry.path, depth + 1))
            elif entry.name == name and entry.is_file(follow_symlinks=False):
                paths.append(entry.path)
        if len(paths) > MAX_FILES:
            break
    return sorted(paths)


def take_snapshot(
    folders: Iterable[str],
    names: tuple[str, ...],
    trees: Iterable[tuple[str, str]],
    paths: Iterable[str],
) -> tuple[Any, ...]:
    """Return the fingerprints of files on the disk. Equal snapshots mean that nothing changed.

    Args:
        folders: folders whose subfolders have files with one of the `names`.
        names: the names of the files in `folders`.
        trees: folders, each with the name of the files to find in its whole tree.
        paths: single paths, existing or not.
    """
    snapshot: list[Any] = []
    for folder in folders:
        snapshot += [_fingerprint(os.path.join(folder, name)) for name in names]
        try:
            with os.scandir(folder) as entries:
                # The time of a folder changes when an entry is added or removed.
                snapshot += sorted(
                    (
                        entry.name,
                        _fingerprint(entry.path),
                        *(_fingerprint(f"{entry.path}{os.sep}{name}") for name in names),
                    )
                    for entry in entries
                )
        except OSError:
            snapshot.append(folder)
    for tree, file_name in trees:
        snapshot += [(path, _fingerprint(path)) for path in find_in_tree(tree, file_name)]
    snapshot += [(path, _fingerprint(path)) for path in paths]
    return tuple(snapshot)


def _fingerprint(path: str) -> Fingerprint:
    try:
        status = os.stat(path)
    except OSError:
        return _MISSING
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def reject_outside_link(path: str) -> ReadResult[Any]:
    """Return the result of a manifest that is a link out of the workspace."""
    return ReadResult(
        problems=[
            file_problem(
                path,
                "this is a link that leads out of the workspace",
                "keep the file itself in the workspace",
            )
        ]
    )


def _follow_link(path: str, homes: tuple[str, ...]) -> ManifestFile:
    real = os.path.realpath(path)
    inside = any(is_below(real, home) for home in homes)
    return ManifestFile(real, True) if inside else ManifestFile(path, False)


INVALID: Final = "config_error"


class ManifestRejection(Struct, frozen=True):
    """The reason why a file is not used: a code for programs, problems for people."""

    code: str
    problems: tuple[Problem, ...]


class Workspace:
    """The result of one scan. It does not change: `reload` returns a new workspace."""

    def __init__(self, settings: _Settings, cache: ReadCache) -> None:
        self.root = settings.root
        self.drivers: dict[str, DriverManifest] = {}
        """The valid drivers, by `id@major`."""
        self.contracts: dict[str, ToolContract] = {}
        """The contracts, by `id@major`."""
        self.bindings: dict[str, tuple[EntryBinding, ...]] = {}
        """The bound entries of each driver, by `id@major` of the driver."""
        self.serving: dict[str, tuple[str, ...]] = {}
        """The drivers that serve a contract, by `id@major` of the contract."""
        self.secrets = SecretsInventory()
        self.secret_names: dict[str, str] = {}
        """Maps the name of a secret in manifests to its slug."""
        self.rejected_files: dict[Path, ManifestRejection] = {}
        self.cautions: dict[Path, tuple[Caution, ...]] = {}
        self.registered: dict[str, DriverManifest] = dict(settings.registered)
        """The last accepted version of each driver, by `id@major`, to compare the next one with."""
        self.read_files: tuple[Path, ...] = ()
        """The files that this scan read. Results of other files came from the cache."""
        self._settings = settings
        self._cache = cache
        self._seen: tuple[str, ...] = ()
        self._snapshot: tuple[Any, ...] = ()

    @property
    def problems(self) -> dict[Path, tuple[Problem, ...]]:
        """The problems of the rejected files, by path."""
        return {path: rejection.problems for path, rejection in self.rejected_files.items()}

    def versions(self, contract_id: str) -> list[ToolContract]:
        """Return all major versions of a contract."""
        return [contract for contract in self.contracts.values() if contract.id == contract_id]

    def reload(self, changed: Iterable[Path] = ()) -> Workspace:
        """Return the current workspace. Only changed files are read again.

        Args:
            changed: files that are read again even if their fingerprints are equal.
        """
        valid = {driver.file: driver for driver in self.drivers.values()}
        settings = structs.replace(self._settings, registered=self.registered, valid=valid)
        changed = tuple(changed)
        if not changed and _take_snapshot(settings, self._seen) == self._snapshot:
            unchanged = copy.copy(self)
            unchanged.read_files = ()
            return unchanged
        return _scan(settings, self._cache, changed)


class _Settings(Struct, frozen=True):
    root: Path
    folders: tuple[str, ...]
    contract_folders: tuple[str, ...]
    secrets_folder: str
    plain_http: bool
    registered: Mapping[str, DriverManifest]
    valid: Mapping[Path, DriverManifest] = {}
    """The drivers before a reload, by file."""


def load_workspace(
    root: Path,
    *,
    folders: Sequence[str | Path] = (".drivers",),
    contract_folders: Sequence[str | Path] = ("tools", ".tools"),
    secrets_folder: str | Path = ".secrets",
    plain_http: bool = False,
    registered: Mapping[str, DriverManifest] | None = None,
) -> Workspace:
    """Read all manifests of a workspace. Folders are absolute, or relative to `root`.

    Args:
        plain_http: whether the URLs of remote servers may be unencrypted.
        registered: the last accepted version of each driver, by `id@major`. A driver with a change
            that requires a new major version is rejected.
    """
    real_root = os.path.realpath(root)

    def resolve(names: Sequence[str | Path]) -> tuple[str, ...]:
        return tuple(os.path.realpath(os.path.join(real_root, name)) for name in names)

    settings = _Settings(
        root=Path(real_root),
        folders=resolve(folders),
        contract_folders=resolve(contract_folders),
        secrets_folder=os.path.realpath(os.path.join(real_root, secrets_folder)),
        plain_http=plain_http,
        registered=registered or {},
    )
    return _scan(settings, ReadCache(), ())


def _scan(settings: _Settings, cache: ReadCache, changed: Iterable[Path]) -> Workspace:
    workspace = Workspace(settings, cache)
    cache.begin(changed)
    # Taken before files are read, so that the next reload detects changes during the scan.
    before = _take_snapshot(settings, ())
    scan = _Scan(workspace, settings, cache)
    scan.run()
    cache.end()
    workspace.read_files = tuple(Path(path) for path in cache.read)
    if cache.is_unchanged(scan.seen):
        workspace._seen = tuple(sorted(scan.seen))
        workspace._snapshot = (*before, *take_snapshot((), (), (), workspace._seen))
    return workspace


def _take_snapshot(settings: _Settings, paths: Iterable[str]) -> tuple[Any, ...]:
    trees = [(folder, CONTRACT_FILE) for folder in settings.contract_folders]
    trees.append((settings.secrets_folder, INVENTORY_FILE))
    return take_snapshot(settings.folders, (MANIFEST_FILE, CODE_FILE), trees, paths)


class _Scan:
    """One scan of a workspace: contracts, drivers, secrets, then bindings."""

    def __init__(self, workspace: Workspace, settings: _Settings, cache: ReadCache) -> None:
        self._workspace = workspace
        self._settings = settings
        self._cache = cache
        self._finder = FileFinder(settings.root)
        self._by_id: dict[str, list[ToolContract]] = {}
        self._contracts: dict[str, ToolContract | None] = {}
        self._inventories: dict[str, list[Problem]] = {}
        """The problems of each inventory, by path."""
        self._secrets: list[SecretEntry] = []

    def run(self) -> None:
        for folder in self._settings.contract_folders:
            for path in find_in_tree(folder, CONTRACT_FILE):
                self._load_contract(path)
        drivers = self._load_drivers()
        for path in find_in_tree(self._settings.secrets_folder, INVENTORY_FILE):
            self._load_inventory(path)
        inventories = {driver.file: self._load_driver_inventory(driver) for driver in drivers}
        self._workspace.secrets = SecretsInventory(self._unique_secrets())
        self._workspace.secret_names = unambiguous_names(self._workspace.secrets)
        for driver in drivers:
            self._bind(driver, self._inventory_problems(driver, inventories[driver.file]))

    @property
    def seen(self) -> Mapping[str, bool]:
        """The paths outside the folders on which results depended, and whether they existed."""
        return self._finder.seen

    def _reject(self, path: str | Path, code: str, problems: Sequence[Problem]) -> None:
        self._workspace.rejected_files[Path(path)] = ManifestRejection(code, tuple(problems))

    def _add_cautions(self, path: Path, cautions: Iterable[Caution]) -> None:
        all_cautions = (*self._workspace.cautions.get(path, ()), *cautions)
        if all_cautions:
            self._workspace.cautions[path] = all_cautions

    def _load_contract(self, path: str) -> ToolContract | None:
        """Return the contract of a file, and add it to the workspace. None: it cannot be used."""
        if path not in self._contracts:
            self._contracts[path] = self._read_contract(path)
        return self._contracts[path]

    def _read_contract(self, path: str) -> ToolContract | None:
        result = self._cache.load(path, load_contract)
        if result is None:
            return None
        contract = result.value
        if contract is None:
            self._reject(path, INVALID, result.problems)
            return None
        first = self._workspace.contracts.get(contract.key)
        if first is None:
            self._workspace.contracts[contract.key] = contract
            self._by_id.setdefault(contract.id, []).append(contract)
            self._add_cautions(contract.file, result.cautions)
            return contract
        if first.digest == contract.digest:
            return first
        self._reject(
            path,
            INVALID,
            [
                Problem(
                    path, 0, 0, "id", f"{contract.key} is already declared in {first.file}",
                    "remove one of the two files, or change the id or the major version here",
                )
            ],
        )  # fmt: skip
        return None

    def _load_drivers(self) -> list[DriverManifest]:
        root, plain_http = self._settings.root, self._settings.plain_http

        def read(path: Path) -> ReadResult[DriverManifest]:
            return load_driver(path, root=root, plain_http=plain_http)

        drivers: dict[str, DriverManifest] = {}
        invalid: list[DriverManifest] = []
        for folder in self._settings.folders:
            files = find_in_subfolders(folder, MANIFEST_FILE, (folder, str(root)))
            for path, inside, status in files:
                result = (
                    self._cache.load(path, read, status, CODE_FILE)
                    if inside
                    else reject_outside_link(path)
                )
                if result is None:
                    continue
                driver = result.value
                self._add_cautions(Path(path), result.cautions)
                if driver is None:
                    self._reject(path, INVALID, result.problems)
                    # A link that leads out of the workspace has no last valid version.
                    if inside and (last := self._settings.valid.get(Path(path))):
                        invalid.append(last)
                elif driver.key in drivers:
                    if drivers[driver.key].file != driver.file:
                        problem = _duplicate_problem(driver, drivers[driver.key])
                        self._reject(path, INVALID, [problem])
                else:
                    drivers[driver.key] = driver
        for last in invalid:
            drivers.setdefault(last.key, last)
        return list(drivers.values())

    def _load_inventory(self, path: str) -> None:
        """Add the secrets of a file to the workspace."""
        if path in self._inventories:
            return
        result = self._cache.load(path, load_inventory)
        problems: list[Problem] = []
        if result is not None and result.value is None:
            problems = result.problems
        elif result is not None and result.value is not None:
            self._secrets += result.value.entries.values()
        self._inventories[path] = problems

    def _unique_secrets(self) -> dict[str, SecretEntry]:
        """Return the secrets that exactly one inventory lists.

        A secret in two inventories is not used: otherwise an inventory could replace the access
        rules of another one's secret.
        """
        conflicts = find_conflicts(self._secrets)
        for entry in self._secrets:
            for claim, other in conflicts.get(id(entry), ())[:1]:
                self._inventories.setdefault(str(entry.file), []).append(
                    Problem(
                        str(entry.file), entry.line, 1, "secrets",
                        f"{claim} is listed here and in {other.file}, so neither entry is used",
                        "remove one of the two; drivers can share one inventory (auth.ref)",
                    )
                )  # fmt: skip
        for path, problems in self._inventories.items():
            if problems:
                self._reject(path, INVALID, problems)
        return {entry.slug: entry for entry in self._secrets if id(entry) not in conflicts}

    def _load_driver_inventory(self, driver: DriverManifest) -> str | Problem:
        """Load the inventory that `auth.ref` names, and return its path. Empty: it names none."""
        if driver.auth is None or not driver.auth.ref:
            return ""
        try:
            path = self._finder.find(driver.auth.ref, str(driver.folder))
        except InvalidValueError as bad:
            return _problem(driver, "auth.ref", bad.message, bad.hint)
        self._load_inventory(path)
        return path

    def _inventory_problems(
        self, driver: DriverManifest, inventory: str | Problem
    ) -> list[Problem]:
        """Return the problems of a driver's inventory, which reject the driver as well."""
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
        workspace = self._workspace
        code = INVALID
        problems = problems or self._secret_problems(driver)
        driver, runner_problems = self._load_runner(driver)
        problems += runner_problems
        bindings: list[EntryBinding] = []
        for index, entry in enumerate(driver.implements):
            try:
                contract = self._find_contract(driver, entry)
            except InvalidValueError as bad:
                code = TOOL_UNAVAILABLE
                field = f"implements[{index}]"
                problems.append(
                    Problem(str(driver.file), entry.line, 1, field, bad.message, bad.hint)
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
                f"two entries serve {binding.contract.key}", "remove one of the two",
            )
            for index, binding in enumerate(bindings)
            if binding.contract.key in served[:index]
        ]  # fmt: skip
        earlier = workspace.registered.get(driver.key)
        if earlier is not None and earlier.digest != driver.digest:
            problems += successor_problems(earlier, driver)
        if problems:
            self._reject(driver.file, code, problems)
            return
        self._add_cautions(driver.file, lint.lint_bindings(driver, bindings, self._skill_exists))
        workspace.drivers[driver.key] = workspace.registered[driver.key] = driver
        workspace.bindings[driver.key] = tuple(bindings)
        for key in served:
            workspace.serving[key] = (*workspace.serving.get(key, ()), driver.key)

    def _find_contract(self, driver: DriverManifest, entry: ImplementedContract) -> ToolContract:
        """Return the contract of an entry. Raises InvalidValueError."""
        if not is_path(entry.tool):
            versions = self._by_id.get(entry.tool)
            if not versions:
                raise InvalidValueError(
                    f"there is no contract {entry.tool}", "check the id, or write a TOOL.md for it"
                )
            return choose_contract(entry.tool, entry.version, versions)
        path = self._finder.find(entry.tool, str(driver.folder))
        contract = self._load_contract(path)
        if contract is None:
            raise InvalidValueError(f"the contract in {entry.tool} cannot be used", f"see {path}")
        return choose_contract(contract.id, entry.version, [contract])

    def _secret_problems(self, driver: DriverManifest) -> list[Problem]:
        problems = []
        for name in required_secrets(driver):
            if name in self._workspace.secret_names:
                continue
            message = f"no inventory of the workspace lists the secret {name}"
            hint = "list it in the SECRETS.md that auth.ref names"
            try:
                find_entry(name, self._workspace.secrets)
            except InvalidValueError as bad:
                message, hint = bad.message, bad.hint
            problems.append(_problem(driver, "server", message, hint))
        return problems

    def _load_runner(self, driver: DriverManifest) -> tuple[DriverManifest, list[Problem]]:
        """Return the driver with the content of its RUNNER.md, if it names one."""
        if not isinstance(driver.runner, str):
            return driver, []
        try:
            path = self._finder.find(driver.runner, str(driver.folder))
            block = read_document(read_source(Path(path)).text, path).value
        except InvalidValueError as bad:
            return driver, [_problem(driver, "runner", bad.message, bad.hint)]
        except ConfigError as error:
            return driver, [_problem(driver, "runner", error.problems[0].message, f"see {path}")]
        return structs.replace(driver, runner=block), []

    def _skill_exists(self, driver: DriverManifest, path: str) -> bool:
        try:
            self._finder.find(path, str(driver.folder))
        except InvalidValueError:
            return False
        return True


def required_secrets(driver: DriverManifest) -> tuple[str, ...]:
    """Return the names of the secrets for starting or reaching the server of a driver."""
    server = driver.server
    if server is None:
        return ()
    names: dict[str, None] = {}
    for text in server.env.values():
        names.update(dict.fromkeys(placeholders.find_secret_names(text)))
    if server.auth is not None:
        names[server.auth.secret] = None
    elif server.kind == "remote" and driver.auth is not None and driver.auth.state_env:
        names[driver.auth.state_env[0]] = None
    return tuple(names)


def _duplicate_problem(driver: DriverManifest, other: DriverManifest) -> Problem:
    return _problem(
        driver,
        "id",
        f"{driver.key} is already declared in {other.file}",
        "change the id or the major version here",
    )


def _problem(driver: DriverManifest, path: str, message: str, hint: str) -> Problem:
    return Problem(str(driver.file), 0, 0, path, message, hint)
