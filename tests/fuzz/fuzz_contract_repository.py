"""A contract registry whose files anybody may have written: any bytes in it are a contract, a
problem that is told, or nothing; HEAD is a branch or a commit, or refused."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from interlock.contracts.registry import layout
from interlock.contracts.registry.git_folder import RepositoryFolder
from interlock.contracts.registry.index import ContractIndex
from interlock.errors import InterlockError

SEEDS = [
    b"shop/Order/1.0.0.schema.json\n"
    b'{"type":"object"}\n'
    b'{"name":"Order","version":"1.0.0","domain":"shop","protocol":"json-schema","digest":"x",'
    b'"source":"s","generator_version":"g","timestamp":"2027-01-01T00:00:00Z"}',
    b"shop/Order/deprecations.json\n"
    b'[{"name":"Order","domain":"shop","major":1,"deprecated_at":"2027-01-01","sunset_at":'
    b'"2027-07-01","migration_uri":"x:y"}]\n',
    b'registry.json\n{"interlock":"contract registry","format":1,"version":1,"time":"","run":'
    b'{"schema_count":1,"drift_violations":0,"generation_duration":0.5}}\n',
    b"a/b/1.0.0.proto\nsyntax\n{}",
    b"a/b/1.0.0.tool.json\n" + b"[" * 2000 + b"\n{}",
    b"ref: refs/heads/main\n# pack-refs\n" + b"0" * 40 + b" refs/heads/main\n",
    b"ref: ../../../etc/passwd\n\n",
    b"\xff\xfe\n\n",
]
_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-contracts-")
_PATH = Path(_FOLDER.name)
_PLACE = RepositoryFolder(_PATH, _PATH, _PATH, None)
_INDEX = ContractIndex(None)
_COMMITS = count()


class Repository:
    """Two files at one commit."""

    def __init__(self, files: dict[str, bytes], commit: str) -> None:
        self._files = files
        self.commit = commit

    def tree(self, commit: str) -> dict[str, str]:
        return {path: f"{commit} {path}" for path in self._files}

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        return {id: self._files[id.partition(" ")[2]] for id in ids}


def TestOneInput(data: bytes) -> None:
    name, _, rest = data.partition(b"\n")
    content, _, note = rest.partition(b"\n")
    path = name.decode(errors="replace")
    index = _INDEX
    repository = Repository({path: content, layout.note_path(path): note}, str(next(_COMMITS)))
    index.refresh(repository.commit, repository)
    found, problems = index.search(), index.problems()
    assert len(found) + len(problems) <= 2
    for one in found:
        # What is found is what its path says, and its document is what was digested.
        assert one.path == layout.document_path(one.domain, one.name, one.version, one.protocol)
        assert index.document(one.path) in (content, note)
    reason, contracts = layout.read_message(data.decode(errors="replace"))
    assert layout.read_message(layout.format_message(reason, contracts))[1] == contracts
    (_PATH / "HEAD").write_bytes(name)
    (_PATH / "packed-refs").write_bytes(rest)
    try:
        head = _PLACE.head()
    except InterlockError:
        return
    assert head.branch is None or head.branch.startswith("refs/heads/")
    assert head.commit is None or len(head.commit) in (40, 64)
