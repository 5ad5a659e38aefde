"""A drive with three files."""

from __future__ import annotations

from interlock.tree.subserver import Subserver, ToolError

FILES = {
    "roadmap": "Q3: the tree. Q4: the gates.",
    "minutes": "All participants agreed.",
    "budget": "The budget is sufficient.",
}

drive = Subserver("google_drive")


@drive.tool(latency_class="fast", mutable=False)
def search_files(word: str) -> list[str]:
    """List the files that have a word in their name or text."""
    return [name for name, text in FILES.items() if word in f"{name} {text}"]


@drive.tool(latency_class="fast", mutable=False)
def read_file(name: str) -> str:
    """Return the content of a file."""
    if name not in FILES:
        raise ToolError(f"There is no file {name!r}; there are {', '.join(FILES)}.")
    return FILES[name]


if __name__ == "__main__":
    drive.run()
