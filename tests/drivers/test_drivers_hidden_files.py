"""Files of a workspace that driver servers cannot change or read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from interlock.core.config import Config, parse_config
from interlock.core.config.section import FeatureSection
from interlock.drivers.paths import guarded_from_drivers, hidden_from_drivers
from tests.drivers.sandbox.confinements import attempt_all, needs_confinement, open_confinement

pytestmark = pytest.mark.usefixtures("no_leaks")

CONFIG = """
listen: 127.0.0.1:0
state_dir: state
journal: {path: journal.db}
approvals: {anchors: [{name: human, key: keys/human.pem}]}
contracts: {registry: registry}
drivers: {trust: [author.pem], secrets: {token: "${file:token.txt}"}}
tls: {certificate: tls/node.pem, key: tls/node.key}
subservers: {trust: [subservers.pem]}
identity: {issuers: [{issuer: "https://id.example", audience: [node], jwks_file: jwks.json}]}
servers:
  one: {command: ./one.sh}
  two: {command: python3, args: [two.py, --config=two.json], cwd: scripts}
"""
FILES = (
    "interlock.yaml", "keys/human.pem", "author.pem", "token.txt", "tls/node.pem", "tls/node.key",
    "subservers.pem", "jwks.json", "one.sh", "scripts/two.py", "scripts/two.json",
    "registry/HEAD", ".drivers/a/DRIVER.md", "tools/a/TOOL.md", ".git/config", ".git/hooks/post",
)  # fmt: skip
ABSENT = (".tools", ".secrets", "state-installed")


def workspace(folder: Path) -> Config:
    for name in (
        *FILES,
        "conf/interlock/keys/chief.pem",
        "state/key",
        "journal.db",
        "journal.db-wal",
        ".git/index",
        "data.txt",
    ):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine", encoding="utf-8")
    return parse_config(CONFIG)


@needs_confinement
@pytest.mark.feature("tree")
@pytest.mark.spec("DR-32.security-1", "DR-30.security-1")
async def test_trust_files_are_not_writable_for_drivers(tmp_path: Path) -> None:
    config = workspace(tmp_path)
    environ = {"XDG_STATE_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "conf")}

    async with open_confinement(
        hidden=hidden_from_drivers(config, environ, tmp_path),
        read_only=guarded_from_drivers(config, environ, tmp_path),
    ) as inside:
        written = await attempt_all(inside, *(("written", tmp_path / file) for file in FILES))
        assert dict(zip(FILES, written, strict=True)) == dict.fromkeys(FILES, "EROFS")
        made = await attempt_all(inside, *(("made", tmp_path / item / "evil") for item in ABSENT))
        assert made == ["EROFS"] * len(ABSENT)
        assert await attempt_all(
            inside,
            ("listed", tmp_path / "state"),
            ("read", tmp_path / "journal.db"),
            ("read", tmp_path / "journal.db-wal"),
            ("renamed", tmp_path / ".git", tmp_path / "git"),
            ("renamed", tmp_path / "keys", tmp_path / "mine"),
        ) == [[], "", "", "EBUSY", "EBUSY"]
        # What says who somebody is: private keys and secrets, and those of operators.
        assert await attempt_all(
            inside,
            ("read", tmp_path / "tls/node.key"),
            ("read", tmp_path / "token.txt"),
            ("listed", tmp_path / "conf/interlock/keys"),
            ("read", tmp_path / "conf/interlock/keys/chief.pem"),
            ("read", tmp_path / "tls/node.pem"),
        ) == ["", "", [], "ENOENT", "mine"]
        # The rest of the workspace is what it works in.
        free = [tmp_path / item for item in ("data.txt", "new", ".git/index", "scripts/new")]
        assert await attempt_all(inside, *(("written", item) for item in free)) == ["done"] * 4
    assert all((tmp_path / file).read_text(encoding="utf-8") == "mine" for file in FILES)


def test_arguments_that_are_not_paths_are_ignored(tmp_path: Path) -> None:
    config = parse_config(
        "servers: {one: {command: x, args: ['" + "a" * 5000 + "', '~nobody-at-all/x', '.']}}\n"
    )
    places = guarded_from_drivers(config, {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert {place.name for place in places if tmp_path in place.parents} == {
        ".drivers", ".secrets", ".tools", "tools",
    }  # fmt: skip


class Vault(FeatureSection, frozen=True):
    KEY = "vault"

    key: str
    store: str

    def private_files(self) -> Iterable[str]:
        return (self.key, self.store)


def test_private_files_of_features_are_hidden(tmp_path: Path) -> None:
    for name in ("vault.key", "vault.db", "vault.db-wal", "public.txt"):
        (tmp_path / name).touch()
    (tmp_path / "link.key").symlink_to("vault.key")
    config = Config(sections=[Vault(key="link.key", store="vault.db")])
    hidden = hidden_from_drivers(config, {"XDG_STATE_HOME": "/nowhere"}, tmp_path)
    actual = {path.name for path in hidden if path.parent == tmp_path.resolve()}
    assert actual == {"vault.key", "vault.db", "vault.db-wal"}
