"""Break the product once for each clause of a requirement, and check that its tests fail.

`spec/mutations/*.yaml` lists the mutations: the item, the clause in a few words, and the text of a
file that is replaced. `make spec-mutations` applies each one in a copy of the tree, runs the tests
that are marked with the item, and writes the results to `spec/mutations/results/`. A mutation that
survives is an error: the tests do not prove the clause. `--check` runs no test. It fails on a
proven MUST without a mutation, on a mutation that does not match the source, and on a mutation
without a result.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tools.mutation_runner import (
    COLLECTION,
    INVALID,
    Change,
    MutationError,
    MutationTree,
    TestRun,
    print_progress,
    run_in_trees,
)
from tools.spec_markers import read_tests
from tools.spec_register import RegisterError, State, claims, read_items, read_status

ROOT = Path(__file__).resolve().parent.parent
PROOF_STATES = (State.DONE, State.NOT_YET)
"""The state of an item without a mark. With a mark it is proven."""


class Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A clause of an item, and the change of the product that breaks it."""

    item: str
    clause: str
    file: str
    find: str
    replace: str

    @property
    def change(self) -> Change:
        return Change(self.file, self.find, self.replace)

    @property
    def digest(self) -> str:
        data = msgspec.json.encode([self.item, self.file, self.find, self.replace])
        return hashlib.sha256(data).hexdigest()[:12]


class Result(msgspec.Struct, frozen=True):
    """The test that failed when the mutation was applied."""

    item: str
    digest: str
    killed_by: str


class Register(msgspec.Struct, frozen=True):
    """All mutations by their file, with their results, and the tests of each item."""

    mutations: dict[str, list[Mutation]]
    results: dict[str, Result]
    tests: dict[str, list[str]]
    required: list[str]
    """Every MUST that is proven."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    root: Path = options.root
    try:
        register = read_register(root)
    except (RegisterError, msgspec.DecodeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.check:
        faults = find_faults(root, register)
        for fault in faults:
            print(fault, file=sys.stderr)
        return 1 if faults else 0
    chosen = {
        name: [
            mutation
            for mutation in mutations
            if _matches(mutation.item, options.item)
            and not (options.new and mutation.digest in register.results)
        ]
        for name, mutations in register.mutations.items()
    }
    return run(root, register, chosen, jobs=options.jobs)


def read_register(root: Path) -> Register:
    items = read_items(root / "spec")
    claimed = claims(items, read_status(root / "spec" / "status.yaml"))
    tests: dict[str, list[str]] = {}
    for proof in read_tests(root / "tests").proofs:
        names = tests.setdefault(proof.item, [])
        if proof.test not in names:
            names.append(proof.test)
    mutations: dict[str, list[Mutation]] = {}
    results: dict[str, Result] = {}
    folder = root / "spec" / "mutations"
    for path in sorted(folder.glob("*.yaml")):
        try:
            mutations[path.stem] = msgspec.yaml.decode(path.read_bytes(), type=list[Mutation])
        except msgspec.DecodeError as error:
            raise RegisterError(f"{path}: {error}") from error
        written = _results_path(root, path.stem)
        if written.exists():
            for result in msgspec.yaml.decode(written.read_bytes(), type=list[Result]):
                results[result.digest] = result
    required = [
        item.id
        for item in items.values()
        if item.level == "MUST"
        and item.id in tests
        and (item.id not in claimed or claimed[item.id].state in PROOF_STATES)
    ]
    return Register(mutations, results, tests, required)


def find_faults(root: Path, register: Register) -> list[str]:
    """Return contradictions between the mutations, the register, the source and the results."""
    faults: list[str] = []
    mutated: set[str] = set()
    texts: dict[str, str] = {}
    for name, mutations in register.mutations.items():
        for mutation in mutations:
            mutated.add(mutation.item)
            place = f"spec/mutations/{name}.yaml: {mutation.item}, {mutation.clause}"
            if mutation.item not in register.tests:
                faults.append(f"{place}: no test is marked with the item")
            path = root / mutation.file
            if mutation.file not in texts:
                texts[mutation.file] = path.read_text(encoding="utf-8") if path.exists() else ""
            try:
                mutation.change.apply(texts[mutation.file])
            except MutationError as error:
                faults.append(f"{place}: {error}. Adapt the mutation to the source.")
            if mutation.digest not in register.results:
                faults.append(f"{place}: no test killed it yet. Run `make spec-mutations`.")
    faults += [
        f"{item} is a proven MUST without a mutation in spec/mutations"
        for item in register.required
        if item not in mutated
    ]
    return faults


def run(root: Path, register: Register, chosen: dict[str, list[Mutation]], *, jobs: int) -> int:
    """Apply the mutations and write the results. Return 1 if a mutation survives."""
    work = [(name, mutation) for name, mutations in chosen.items() for mutation in mutations]
    baseline = _failing_items(register, {mutation.item for _, mutation in work}, jobs)
    survivors = 0
    for number, ((name, mutation), outcome) in enumerate(
        run_in_trees(work, lambda tree, one: _run_one(register, tree, one[1], baseline), jobs=jobs),
        start=1,
    ):
        label = f"{number}/{len(work)} {mutation.item} ({mutation.clause})"
        if outcome.failure is None or outcome.failure.startswith("!"):
            survivors += 1
            register.results.pop(mutation.digest, None)
            print(f"{label}: {(outcome.failure or '!SURVIVED')[1:]}", flush=True)
        else:
            register.results[mutation.digest] = Result(
                mutation.item, mutation.digest, outcome.failure.partition("[")[0]
            )
            print_progress(f"{label}: killed by {outcome.failure}")
        _write_results(root, register, name)
    print(f"{len(work) - survivors} of {len(work)} mutations were killed")
    return 1 if survivors else 0


def _run_one(
    register: Register, tree: MutationTree, mutation: Mutation, baseline: set[str]
) -> TestRun:
    tests = [f"tests/{name}" for name in register.tests.get(mutation.item, [])]
    if not tests:
        return TestRun("!no test is marked with the item", "")
    if mutation.item in baseline:
        return TestRun("!its tests fail or cannot run without the mutation", "")
    try:
        with tree.changed(mutation.change):
            outcome = tree.test(tests)
    except MutationError as error:
        return TestRun(f"!{error}", "")
    if outcome.failure == COLLECTION:
        return TestRun("!the mutated source cannot be imported: choose another change", "")
    if outcome.failure in INVALID:
        return TestRun(f"!{outcome.failure}", "")
    return outcome


def _failing_items(register: Register, items: set[str], jobs: int) -> set[str]:
    """Return the items whose tests fail in an unchanged tree, where a failure proves nothing."""
    work = sorted(item for item in items if item in register.tests)
    failing: set[str] = set()
    # Most tests pass, and a run of several items is faster than a run for each item.
    groups = [work[start : start + 8] for start in range(0, len(work), 8)]

    def passes(tree: MutationTree, group: list[str]) -> set[str]:
        def run(some: Iterable[str]) -> TestRun:
            tests = {f"tests/{test}": None for item in some for test in register.tests[item]}
            return tree.test(list(tests))

        if run(group).failure is None:
            return set()
        return {item for item in group if run([item]).failure is not None}

    for _, failed in run_in_trees(groups, passes, jobs=jobs):
        failing |= failed
    print_progress(f"the tests of {len(work) - len(failing)} of {len(work)} items pass unchanged")
    return failing


def _write_results(root: Path, register: Register, name: str) -> None:
    results = [
        register.results[mutation.digest]
        for mutation in register.mutations[name]
        if mutation.digest in register.results
    ]
    path = _results_path(root, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.yaml.encode(results))


def _results_path(root: Path, name: str) -> Path:
    return root / "spec" / "mutations" / "results" / f"{name}.yaml"


def _matches(item: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(item == key or item.startswith(key) for key in wanted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spec_mutations", description=__doc__)
    parser.add_argument("--check", action="store_true", help="run no test, check the register only")
    parser.add_argument("--item", nargs="+", default=[], metavar="ID", help="items or prefixes")
    parser.add_argument("--new", action="store_true", help="only mutations without a result")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs (default: 2)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to read")
    return parser


if __name__ == "__main__":
    sys.exit(main())
