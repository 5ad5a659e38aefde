"""Fuzzes every target of this directory with atheris, each in a process of its own.

    python tests/fuzz/run.py --seconds 60 [--only fuzz_sse]

As many at once as there are processors. One line per target. Ends with 1 if a target crashed (the
input that did it is printed), with 2 if atheris is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_INPUT_BYTES = 4096
# A target that hangs is as bad as one that crashes; libFuzzer ends itself long before this.
GRACE_SECONDS = 600


def main() -> int:
    names = sorted(path.stem for path in HERE.glob("fuzz_*.py"))
    parser = argparse.ArgumentParser(description="Fuzz every parser.")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs")
    parser.add_argument("--only", choices=names, help="run this target alone")
    parser.add_argument(
        "--inside", nargs=2, metavar=("TARGET", "DIRECTORY"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed, so nothing was fuzzed: pip install atheris")
        return 2
    if options.inside:
        _fuzz(options.inside[0], Path(options.inside[1]), options.seconds)
        return 0
    wanted = [name for name in names if options.only in (None, name)]
    with ThreadPoolExecutor(os.cpu_count()) as some:
        went_well = list(some.map(lambda name: _run(name, options), wanted))
    return 0 if all(went_well) else 1


def _run(name: str, options: argparse.Namespace) -> bool:
    """Runs one target in a process of its own and says how it went, in one piece."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--seconds", str(options.seconds)]
        command += ["--inside", name, directory]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=options.seconds + GRACE_SECONDS,
                check=False,
            )
            status, output = done.returncode, done.stdout.decode("utf-8", "replace")
        except subprocess.TimeoutExpired as late:
            status, output = -1, (late.stdout or b"").decode("utf-8", "replace")
        runs = re.findall(r"#(\d+)\s", output)
        culprits = [
            path
            for kind in ("crash", "timeout", "oom")
            for path in Path(directory).glob(f"{kind}-*")
        ]
        if status == 0 and not culprits and runs:
            said = [f"{name}: ok, {int(runs[-1]):,} inputs in {options.seconds} s"]
        else:
            said = [f"{name}: CRASHED (exit {status})", output[-4000:]]
            said += [f"  input: {culprit.read_bytes()!r}" for culprit in culprits]
        sys.stdout.write("".join(f"{line}\n" for line in said))
        sys.stdout.flush()
        return len(said) == 1


def _fuzz(name: str, directory: Path, seconds: int) -> None:
    # By name, because it carries no types and is not there on every machine.
    atheris = importlib.import_module("atheris")
    sys.path.insert(0, str(HERE.parents[1]))
    with atheris.instrument_imports(include=["interlock"]):
        target = importlib.import_module(f"tests.fuzz.{name}")
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-artifact_prefix={directory}/",
        "-timeout=60",
        "-print_final_stats=1",
    ]
    atheris.Setup([name, *arguments, str(corpus)], target.TestOneInput)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
