"""Which driver asked: a server that wants to know something first gets the answers itself.

Its call is made again with what its caller answered, and by then another driver might be the better
one, or the same one might have other files. So the state that comes back says who asked. On the way
to a caller it is sealed, as every state is: nobody else can write it.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from interlock.core.call import Call, Outcome
from interlock.drivers.driver import Driver
from interlock.errors import INVALID_STATE, InterlockError, ProtocolError
from interlock.protocol.input_required import REQUEST_STATE, read_needed, with_state
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import INPUT_REQUIRED


class Asker(msgspec.Struct, frozen=True):
    """The driver that asked, as it was, and the state of its server."""

    driver: str
    """The key of its manifest."""
    digest: str
    state: str | None = None

    def is_still(self, driver: Driver) -> bool:
        return self.driver == driver.manifest.key and self.digest == driver.digest


def signed_by(driver: Driver, outcome: Outcome) -> Outcome:
    """A result that asks for input, with a state that says who asks. What cannot be read is left as
    it is: whoever passes it on says so."""
    glance = outcome.glance
    if glance is None or glance.result_type != INPUT_REQUIRED:
        return outcome
    try:
        needed = read_needed(outcome.result)
    except ProtocolError:
        return outcome
    asker = Asker(driver.manifest.key, driver.digest, needed.state)
    state = msgspec.json.encode(asker).decode()
    return Outcome(with_state(outcome.result, state), outcome.era, glance)


def asker_of(call: Call) -> Asker | None:
    """Who asked, when a call brings answers. Raises InterlockError for a state that is none of
    ours."""
    raw = None if call.extra is None else call.extra.get(REQUEST_STATE)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(decode_value(raw), type=Asker)
    except (msgspec.DecodeError, ProtocolError, TypeError):
        raise gone() from None


def words_for(call: Call, asker: Asker | None) -> dict[str, Raw] | None:
    """What beside the arguments is passed on to the server: its own state, as it gave it."""
    if asker is None or call.extra is None:
        return call.extra
    given = {name: one for name, one in call.extra.items() if name != REQUEST_STATE}
    if asker.state is not None:
        given[REQUEST_STATE] = Raw(encode_value(asker.state))
    return given or None


def gone() -> InterlockError:
    """Whoever asked is not there any more as it was: nobody else gets the answers."""
    return InterlockError(
        INVALID_STATE,
        "The driver that asked for this is no longer there, or is another by now: make the call "
        "again without `requestState`.",
        {"reason": "invalid_request_state"},
    )
