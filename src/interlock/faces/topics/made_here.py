"""Whether a proposal to the node is the node's to make: it waits in the inbox, or was made. Then
nobody else's request that names it is made as well.
"""

from __future__ import annotations

from interlock.errors import ALREADY_DECIDED, CONFIRMATION_REQUIRED, InterlockError
from interlock.faces.topics.fates import MADE, NOTHING, TAKEN, WAITS, Fates
from interlock.pipeline.approval.approvals import Approvals
from interlock.pipeline.approval.record import DONE, EXPIRED, LOST, REFUSED, VOID, Approval


class MadeHere:
    """Of one room."""

    def __init__(self, fates: Fates, approvals: Approvals | None, topic: str) -> None:
        self._fates = fates
        self._approvals = approvals
        self._topic = topic

    def is_open(self, id: str) -> bool:
        """Whether a proposal of this id was taken lately, and nothing became of it yet."""
        fate = self._fates.get(id)
        return fate is not None and fate.state in (TAKEN, WAITS)

    def must_be_open_to_others(self, id: str) -> None:
        """Raises InterlockError where a request that fulfils the proposal of this id would do what
        the node does itself: it waits in the inbox, or was made."""
        fate, record = self._fates.get(id), self._record_of(id)
        # Of one that the inbox keeps no more it is known all the same how it ended.
        state = "" if fate is None else fate.state
        if record is not None:
            state = state_of(record)
        if not state or state == NOTHING:
            return
        if state == MADE:
            became = "was made by the node already"
            if record is not None and record.state == LOST:
                became = "was let through here, and whether it was made is not known"
            raise InterlockError(
                ALREADY_DECIDED,
                f"The proposal that you name {became}: it is not made again. Ask without "
                "`correlation_id` if it is to be.",
            )
        if record is not None and not record.over:
            url = None if self._approvals is None else self._approvals.url_of(record.id)
            how = f"at {url}" if url else f"with `interlock approve {record.id}`"
            raise InterlockError(
                CONFIRMATION_REQUIRED,
                f"The proposal that you name waits in the node's inbox, and is made once: decide "
                f"it there, {how}. Approval: {record.id}.",
                {"confirmation_id": record.id, "proposal": id},
            )
        raise given_to_the_node(id)

    def _record_of(self, id: str) -> Approval | None:
        """The approval that a proposal has, where the inbox still knows it."""
        if self._approvals is None:
            return None
        fate = self._fates.get(id)
        if fate is not None:
            return self._approvals.find(fate.approval) if fate.approval else None
        ours = (one for one in self._approvals.pending() if self._is_about(one, id))
        return next(ours, None)

    def _is_about(self, record: Approval, id: str) -> bool:
        about = record.proposal
        return about is not None and (about.topic, about.id) == (self._topic, id)


def given_to_the_node(id: str) -> InterlockError:
    """For whoever fulfils a proposal of which it is not known yet what comes."""
    return InterlockError(
        CONFIRMATION_REQUIRED,
        "The proposal that you name was given to the node, which makes it once, if at all.",
        {"proposal": id},
    )


def state_of(record: Approval) -> str:
    if record.state in (REFUSED, EXPIRED, VOID):
        return NOTHING
    # With a gate below that wants a human, too, it looks like a result and is none.
    return MADE if record.state in (DONE, LOST) and not record.below else WAITS
