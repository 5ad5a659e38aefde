"""The check of the mutations finds missing, outdated and unproven ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from tools import spec_mutations
from tools.spec_mutations import Mutation, find_faults, read_register
from tools.spec_register import SPECS

MUST = "- {id: AX-1-1, level: MUST, says: one, check: c}\n"
MUTATION = {
    "item": "AX-1-1",
    "clause": "the limit",
    "file": "src/limits.py",
    "find": "LIMIT = 3",
    "replace": "LIMIT = 4",
}


class Project:
    """A small project: a register with one MUST, one marked test and one source file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("spec/mutations/results", "tests", "src"):
            (root / folder).mkdir(parents=True)
        for spec in SPECS:
            (root / "spec" / spec.file).write_text("[]\n")
        (root / "spec" / "ax.yaml").write_text(MUST)
        (root / "spec" / "status.yaml").write_text("{}\n")
        (root / "tests" / "test_limits.py").write_text(
            '@pytest.mark.spec("AX-1-1")\ndef test_limit(): ...\n'
        )
        (root / "src" / "limits.py").write_text("LIMIT = 3\n")

    def write_mutations(self, *mutations: dict[str, str]) -> None:
        path = self.root / "spec" / "mutations" / "ax.yaml"
        path.write_bytes(msgspec.yaml.encode(list(mutations)))

    def write_result(self, mutation: dict[str, str]) -> None:
        digest = msgspec.convert(mutation, Mutation).digest
        result = {"item": mutation["item"], "digest": digest, "killed_by": "tests/test_limits.py"}
        path = self.root / "spec" / "mutations" / "results" / "ax.yaml"
        path.write_bytes(msgspec.yaml.encode([result]))

    def faults(self) -> list[str]:
        return find_faults(self.root, read_register(self.root))

    def check(self) -> int:
        return spec_mutations.main(["--check", "--root", str(self.root)])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_accepts_killed_mutation(project: Project) -> None:
    project.write_mutations(MUTATION)
    project.write_result(MUTATION)
    assert project.faults() == []
    assert project.check() == 0


def test_reports_must_without_mutation(project: Project) -> None:
    [fault] = project.faults()
    assert fault.startswith("AX-1-1 ")
    assert project.check() == 1


def test_needs_no_mutation_for_unproven_must(project: Project) -> None:
    (project.root / "tests" / "test_limits.py").unlink()
    assert project.faults() == []


def test_needs_no_mutation_for_divergence(project: Project) -> None:
    (project.root / "spec" / "status.yaml").write_text("diverges:\n  AX-1-1: a reason\n")
    assert project.faults() == []


def test_reports_mutation_without_result(project: Project) -> None:
    project.write_mutations(MUTATION)
    assert len(project.faults()) == 1


@pytest.mark.parametrize("source", ["LIMIT = 5\n", "LIMIT = 3\nOTHER_LIMIT = 3\n"])
def test_reports_outdated_mutation(project: Project, source: str) -> None:
    project.write_mutations(MUTATION)
    project.write_result(MUTATION)
    (project.root / "src" / "limits.py").write_text(source)
    assert len(project.faults()) == 1


def test_result_counts_for_its_change_only(project: Project) -> None:
    project.write_mutations({**MUTATION, "replace": "LIMIT = 5"})
    project.write_result(MUTATION)
    assert len(project.faults()) == 1


def test_digest_is_stable() -> None:
    text = '["AX-1-1","src/limits.py","LIMIT = 3","LIMIT = 4"]'
    expected = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert msgspec.convert(MUTATION, Mutation).digest == expected


def test_rejects_unknown_member(project: Project) -> None:
    project.write_mutations({**MUTATION, "why": "?"})
    assert project.check() == 1
