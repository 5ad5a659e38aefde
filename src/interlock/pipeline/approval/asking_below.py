"""A call that was let through here and stopped at a gate below: whether it may be sent there again,
to hear what became of it. Pure.

It cannot be executed twice by that:

- What was sent before was held below and not executed: the gate there said so, and no other answer
  sets `below`.
- That gate knows the identical call of the same caller. It answers with the approval that it waits
  for, with the refusal, or with what the call came to; it makes the call for a proof of its own
  only, once. What it does not know any more it holds anew.
- If there is no gate any more the call is made now, under the approval of here: for the first
  time, and the last, since its answer sets no `below`.
- Like the first time, `dispatching` is on disk before it leaves. A node that is killed after that
  comes back to `lost`, and asks no more.
"""

from __future__ import annotations

from interlock.call import Call
from interlock.pipeline.approval.inbox import Entry
from interlock.pipeline.approval.record import APPROVED, DONE, Approval


def may_ask_below(record: Approval, changed: list[str], now: float, keep: float) -> bool:
    """`changed`: what is not as it was when a human said yes. What was said is good for as long as
    the gate below waits, and never for longer than outcomes are kept (`keep`)."""
    return not changed and now < min(record.below_until, record.decided + keep)


def leaves_with(entry: Entry, call: Call) -> bool:
    """Whether a call may leave with this approval: it was just given, or the call was sent before,
    stopped below, and this one asks there again."""
    record = entry.record
    if record.state == DONE and record.below:
        return entry.call is call
    return record.state == APPROVED
