"""Results of tool calls, printed for a person or for a program."""

from __future__ import annotations

import sys
from typing import Any, Final

from interlock.terminal import node_discovery, output

_HERE: Final = node_discovery.NodeSelector()


def print_result(
    raw: bytes,
    *,
    json_output: bool = False,
    at: node_discovery.NodeSelector = _HERE,
    stopped: bool = False,
) -> int:
    """Print what a tool answered; the exit code that says whether it failed. `at`: how
    the node was named, which the next command needs too. `stopped`: the node ended with the call.
    """
    import msgspec

    from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT, STATUS

    result = msgspec.json.decode(raw)
    if sys.stderr.isatty():
        # Progress may have left half a line.
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    failed = result.get("isError") is True
    meta = result.get("_meta")
    held = result.get("structuredContent")
    if isinstance(meta, dict) and APPROVAL in meta:
        when, id = (output.sanitize(str(meta.get(key, "?"))) for key in (EXECUTED_AT, APPROVAL))
        output.print_note(
            f"this is the result of the call that was approved and made at {when} ({id})."
        )
        content = result.get("content")
        if isinstance(content, list) and content and id in str(content[-1]):
            # The same, for models.
            content.pop()
    if json_output:
        output.print_json(result.get("structuredContent", result))
    elif isinstance(meta, dict) and STATUS in meta and isinstance(held, dict):
        nobody = held.get("operators_enrolled") is False
        _print_held(held, at, nobody=nobody, stopped=stopped)
    else:
        out = sys.stderr if failed else sys.stdout
        content = result.get("content")
        for block in content if isinstance(content, list) else ():
            text = _shown(block)
            # A file or a pipe gets what the tool said, to the letter; a terminal obeys some of it.
            print(output.sanitize(text) if out.isatty() else text, file=out)
        if not result.get("content") and "structuredContent" in result:
            output.print_json(result["structuredContent"])
    return output.FAILED if failed else output.OK


def _print_held(
    held: dict[str, Any], at: node_discovery.NodeSelector, *, nobody: bool, stopped: bool
) -> None:
    """Tell a person at a terminal what to do about a call that needs approval."""
    import shlex

    def word(name: str) -> str:
        return " ".join(output.sanitize(str(held.get(name, ""))).split())

    id = shlex.quote(word("confirmation_id"))
    tool, reason, url = word("tool"), word("reason"), word("url")
    output.print_problem(
        f"{tool} was not called: approval required.{f' {reason}' if reason else ''}"
    )
    if stopped:
        # The approval is kept, but only a running node can take the decision and make the call.
        output.print_note(
            f"No node is running that could take the approval. Start one first: {at.up_command}"
        )
    output.print_note(
        f"Approve: {at.format_command(f'approve {id}')}" + (f", or {url}" if url else "")
    )
    output.print_note(f"Reject:  {at.format_command(f'refuse {id}')}")
    output.print_note(
        "It runs once approved, and `interlock approve` prints the result. "
        f"Pending until {word('expires_at')}; after that, repeat the call."
    )
    if nobody:
        enrol = at.format_command("keys new NAME")
        output.print_note(f"Nobody can approve calls at this node yet. Enrol first: {enrol}")


def _shown(block: Any) -> str:
    """Whatever stands there: nobody has checked what a participant of a topic answers."""
    if not isinstance(block, dict):
        return "[?]"
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        data = str(block.get("data", ""))
        return f"[{kind} {block.get('mimeType', '')}, {len(data) * 3 // 4} bytes]"
    if kind == "resource_link":
        return str(block.get("uri", ""))
    resource = block.get("resource")
    if isinstance(resource, dict):
        return str(resource.get("text") or f"[{resource.get('uri', 'resource')}]")
    return f"[{kind}]"
