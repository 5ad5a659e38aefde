"""Copies of the working tree that can be changed and tested, with a separate environment.

It writes only below the given folder.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_tree(to: Path) -> None:
    """Copy the tracked files, and those that git does not ignore, with their compiled modules."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if not name or not (source.is_file() or source.is_symlink()):
            continue
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        if name.startswith("src/") and source.suffix == ".py":
            _copy_compiled(source, target)


def _copy_compiled(source: Path, target: Path) -> None:
    """Copy the compiled module. It stays valid, because the modification times are kept."""
    compiled = Path(importlib.util.cache_from_source(str(source)))
    if compiled.is_file():
        cache = Path(importlib.util.cache_from_source(str(target)))
        cache.parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, cache)


def create_environment(copy: Path) -> Path:
    """Create a virtual environment with the packages of this one, and the build of the copy."""
    here = Path(sys.prefix)
    made = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    own = here / packages.relative_to(made)
    # The build of the copy comes first. The path file of this environment is not read there.
    (packages / "without.pth").write_text(f"{copy / 'src'}\n{own}\n", encoding="utf-8")
    for script in (here / "bin").iterdir():
        target = made / "bin" / script.name
        if target.exists() or not script.is_file():
            continue
        body = script.read_bytes()
        if body.startswith(b"#!"):
            body = body.replace(str(here).encode(), str(made).encode())
        target.write_bytes(body)
        target.chmod(0o755)
    return made / "bin" / "python"
