"""Spec markers: how they are found, and faults."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tools.spec_markers import Proof, read_source


def proofs(source: str) -> list[tuple[str, str]]:
    result = read_source(dedent(source), "test_x.py")
    assert not result.faults
    return [(proof.item, proof.test) for proof in result.proofs]


def faults(source: str) -> list[str]:
    return read_source(dedent(source), "test_x.py").faults


def test_reads_several_ids_of_function() -> None:
    source = """
    @pytest.mark.spec("AX-1-1", "AX-1-2")
    @pytest.mark.spec("AX-1-1")
    def test_a(): ...

    @mark.spec("AX-1-3")
    async def test_b(): ...
    """
    assert sorted(proofs(source)) == [
        ("AX-1-1", "test_x.py::test_a"),
        ("AX-1-2", "test_x.py::test_a"),
        ("AX-1-3", "test_x.py::test_b"),
    ]


def test_class_marks_apply_to_its_tests() -> None:
    source = """
    @pytest.mark.spec("AX-1-1")
    class TestOuter:
        pytestmark = [pytest.mark.spec("AX-1-2")]

        def test_a(self): ...

        class TestInner:
            @pytest.mark.spec("AX-1-3")
            def test_b(self): ...
    """
    assert proofs(source) == [
        ("AX-1-1", "test_x.py::TestOuter::test_a"),
        ("AX-1-2", "test_x.py::TestOuter::test_a"),
        ("AX-1-1", "test_x.py::TestOuter::TestInner::test_b"),
        ("AX-1-2", "test_x.py::TestOuter::TestInner::test_b"),
        ("AX-1-3", "test_x.py::TestOuter::TestInner::test_b"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        'pytestmark = pytest.mark.spec("AX-1-1")',
        'pytestmark = [pytest.mark.timeout(3), pytest.mark.spec("AX-1-1")]',
        'pytestmark: list = [pytest.mark.spec("AX-1-1")]',
    ],
)
def test_module_marks_apply_to_its_tests(line: str) -> None:
    assert proofs(f"{line}\ndef test_a(): ...") == [("AX-1-1", "test_x.py::test_a")]


def test_reads_marks_of_parameters() -> None:
    source = """
    @pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.spec("AX-1-1")), 2])
    def test_a(x): ...

    CASES = [pytest.param(1, marks=[pytest.mark.spec("AX-1-2")])]

    @pytest.mark.parametrize("x", CASES)
    def test_b(x): ...
    """
    assert proofs(source) == [
        ("AX-1-1", "test_x.py::test_a"),
        ("AX-1-2", "test_x.py::test_b"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.spec("AX-1-1")\ndef check_a(): ...',
        '@pytest.mark.spec("AX-1-1")\nclass Cases:\n    def test_a(self): ...',
        'CASES = [pytest.param(1, marks=pytest.mark.spec("AX-1-1"))]\ndef test_a(): ...',
        'pytestmark = pytest.mark.spec("AX-1-1")',
    ],
)
def test_reports_marker_without_test(source: str) -> None:
    (fault,) = faults(source)
    assert fault == "test_x.py:1: this spec marker is on no test"


@pytest.mark.parametrize("call", ["spec()", "spec(NAME)", 'spec(id="AX-1-1")', 'spec(f"AX-{n}")'])
def test_requires_literal_ids(call: str) -> None:
    (fault,) = faults(f"@pytest.mark.{call}\ndef test_a(): ...")
    assert fault.startswith("test_x.py:1: ")


@pytest.mark.parametrize(
    "mark",
    [
        "pytest.mark.skip",
        'pytest.mark.skip(reason="r")',
        "pytest.mark.xfail",
        'pytest.mark.xfail(reason="r")',
    ],
)
def test_skipped_test_proves_nothing(mark: str) -> None:
    marked = '@pytest.mark.spec("AX-1-1")'
    for source in (
        f"@{mark}\n{marked}\ndef test_a(): ...",
        f"pytestmark = [{mark}]\n{marked}\ndef test_a(): ...",
        f"@{mark}\nclass TestA:\n    {marked}\n    def test_a(self): ...",
    ):
        result = read_source(source, "test_x.py")
        assert not result.proofs
        assert len(result.faults) == 1


def test_conditionally_skipped_test_proves_item() -> None:
    source = """
    @pytest.mark.skipif(sys.platform == "win32", reason="r")
    @pytest.mark.xfail(sys.platform == "win32", reason="r")
    @pytest.mark.spec("AX-1-1")
    def test_a(): ...
    """
    assert read_source(dedent(source), "test_x.py").proofs == [Proof("AX-1-1", "test_x.py::test_a")]
