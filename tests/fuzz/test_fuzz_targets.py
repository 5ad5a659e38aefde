"""Every fuzz target over inputs that are the same in each run. Needs no atheris."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))
ROUNDS = 2000


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tests.fuzz.{name}")


def small_inputs(seeds: list[bytes]) -> list[bytes]:
    """Random bytes, and seeds with something put in, taken out, changed or doubled."""
    chance = random.Random(20260728)
    bases = [seed for seed in seeds if len(seed) < 500]
    alphabet = sorted({byte for seed in bases for byte in seed})
    inputs: list[bytes] = []
    for round_ in range(ROUNDS):
        if round_ % 4 == 0:
            inputs.append(chance.randbytes(chance.randint(0, 40)))
            continue
        if round_ % 4 == 1:
            inputs.append(bytes(chance.choices(alphabet, k=chance.randint(0, 60))))
            continue
        data = bytearray(chance.choice(bases))
        for _ in range(chance.randint(1, 4)):
            start = chance.randint(0, len(data))
            end = min(len(data), start + chance.randint(0, 4))
            data[start:end] = chance.choice(
                [b"", chance.randbytes(1), data[start:end] * 2, bytes(chance.choices(alphabet))]
            )
        inputs.append(bytes(data))
    return inputs


def test_there_is_a_target_for_every_parser() -> None:
    parsers = {
        "headers", "input_required", "jsonrpc", "lines", "sse", "uri_templates", "websocket",
        "websocket_opening",
    }  # fmt: skip
    assert {f"fuzz_{parser}" for parser in parsers} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_seeds(name: str) -> None:
    target = load(name)
    for seed in target.SEEDS:
        target.TestOneInput(seed)


@pytest.mark.parametrize("name", NAMES)
def test_random_inputs(name: str) -> None:
    target = load(name)
    for data in small_inputs(target.SEEDS):
        try:
            target.TestOneInput(data)
        except Exception as exc:
            raise AssertionError(f"{name} breaks on {data!r}") from exc
