"""The risk score of an action: a number from 0 to 100, always the same for the same action, and its
parts.

It begins with the danger of what would be called, where the node knows that, and of the words where
it does not; it is raised by what stands in the words, and never lowered by them.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from interlock.aql.safety.patterns import ActionHint
from interlock.aql.safety.store import Tier
from interlock.protocol.aql_terms import Danger

MIDPOINTS: Final = {
    Danger.SAFE: 8,
    Danger.REVERSIBLE: 28,
    Danger.DESTRUCTIVE: 50,
    Danger.DANGEROUS: 73,
    Danger.FORBIDDEN: 93,
}
RANGES: Final = {
    Danger.SAFE: (0, 15),
    Danger.REVERSIBLE: (16, 40),
    Danger.DESTRUCTIVE: (41, 60),
    Danger.DANGEROUS: (61, 85),
    Danger.FORBIDDEN: (86, 100),
}
CONFIRM_FROM: Final = 31
VERIFY_FROM: Final = 61
DANGER_ZONE_FROM: Final = 86
TOLERANCES: Final = {"conservative": 25, "moderate": 50, "aggressive": 75}
_TRUST: Final = {"untested": 10, "generated": 5}
_MORE: Final = 10


def _of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS: Final = re.compile(r"[^\W_]+")
_VERBS: Final[dict[Danger, frozenset[str]]] = {
    Danger.SAFE: _of(
        "read list get search look show find check view describe count fetch summarize "
        "summarise inspect browse query open compare explain watch preview examine analyze "
        "analyse review print display see lookup retrieve cat grep ls stat diff"
    ),
    Danger.REVERSIBLE: _of(
        "create add write update edit change set rename copy move append insert save upload "
        "comment label assign tag draft start enable configure install build format run "
        "execute apply modify patch replace merge commit store convert import post put"
    ),
    Danger.DESTRUCTIVE: _of(
        "delete remove send publish deploy release pay buy order push overwrite revoke cancel "
        "disable stop kill close archive reset rollback revert terminate uninstall unlink "
        "evict ban detach email mail sms notify message invite share grant rm erase clear "
        "discard transfer sell charge refund submit"
    ),
    Danger.DANGEROUS: _of(
        "drop wipe purge destroy truncate shred nuke mkfs dd shutdown reboot sudo chmod chown "
        "exfiltrate bypass disarm decommission deprovision annihilate obliterate"
    ),
}
_ALSO_THINGS: Final = _of(
    "email mail sms message order release share comment label tag draft store post build archive "
    "charge format push set start copy change run open print view query list count notify update "
    "review import grant invite stop reset patch commit merge"
)
"""Words that are as often what something is done to: only where a verb stands are they one."""
_BEFORE_A_VERB: Final = _of("and then to will i must shall now or next please also")
_PRODUCTION: Final = _of("production prod live customer customers payroll")
_BULK: Final = _of(
    "all every everything everyone everybody entire whole bulk mass recursive recursively "
    "any each database databases cluster"
)
_BULK_SIGNS: Final = re.compile(
    r"(?<!\w)-[a-z]{0,8}r[a-z]{0,8}f|(?<!\w)-[a-z]{0,8}f[a-z]{0,8}r|\*|--all\b"
)
_EMPTY: Final = _of(
    "a an the this that it its of to in on at by for from with as is are be do does doing "
    "did done i we you they he she me my our your some something anything thing things "
    "stuff work task next step action operation please now will going go continue proceed "
    "and or then just make making let lets use using tool call calling perform performing "
    "handle handling process"
)


class RiskScore(msgspec.Struct, frozen=True):
    """A number, and what it is made of."""

    value: int
    factors: list[str]

    @property
    def tier(self) -> Tier:
        return tier_of(self.value)


def tier_of(value: int) -> Tier:
    if value < CONFIRM_FROM:
        return "advisory"
    if value < VERIFY_FROM:
        return "confirm"
    return "verify" if value < DANGER_ZONE_FROM else "danger_zone"


def words_of(hint: ActionHint) -> list[str]:
    return _WORDS.findall(hint.plain)


def root(word: str) -> str:
    """A verb without its ending, as far as the tables know it."""
    for end, put in (("ing", ""), ("ing", "e"), ("ed", ""), ("ed", "e"), ("es", ""), ("s", "")):
        if word.endswith(end) and len(word) - len(end) >= 3:
            cut = word[: -len(end)]
            for form in (cut + put, cut[:-1] if cut[-1:] == cut[-2:-1] else ""):
                if form and any(form in verbs for verbs in _VERBS.values()):
                    return form
    return word


def danger_of(hint: ActionHint) -> tuple[Danger, str]:
    """The worst that its words say, and the word. What no word says is taken for a change."""
    worst: tuple[Danger, str] | None = None
    before, reads = "and", False
    for index, word in enumerate(words_of(hint)):
        form = root(word)
        found = next((danger for danger, verbs in _VERBS.items() if form in verbs), None)
        verb = form not in _ALSO_THINGS or before in _BEFORE_A_VERB
        # "search for closed issues" closes nothing.
        verb = verb and not (reads and word.endswith("ed"))
        if found is not None and verb:
            reads = reads or (found is Danger.SAFE and index == 0)
            if worst is None or found > worst[0]:
                worst = (found, form)
        before = word
    return worst or (Danger.REVERSIBLE, "")


def specific(hint: ActionHint) -> bool:
    """Whether it says what is done to what: two words at least that mean something."""
    return len({word for word in words_of(hint) if word not in _EMPTY}) >= 2


def score(
    hint: ActionHint,
    *,
    danger: Danger | None = None,
    pattern: str | None = None,
    trust: str = "",
    repeated: int = 0,
    repeat_raises_at: int = 0,
    named: bool = False,
) -> RiskScore:
    """`danger`: of the operation that is meant, where that is known. `pattern`: a glob that asks
    for a human. `repeated`: how often the same was done in this execution. `named`: an operation
    was named, so the words alone need not say enough."""
    said, word = danger_of(hint)
    if named and danger is not None:
        # It is known what is called: what its name sounds like adds nothing.
        said = danger
    level = said if danger is None else max(danger, said)
    value = MIDPOINTS[level]
    factors = [
        f"danger {level.label}"
        + (f" by the word '{word}'" if word and (danger is None or said > danger) else "")
    ]
    words = set(words_of(hint))

    def more(by: int, why: str) -> None:
        nonlocal value
        value += by
        factors.append(f"{why} (+{by})")

    if pattern is not None:
        more(_MORE, f"pattern '{pattern}'")
    # What only reads may read from production.
    if level > Danger.SAFE and words & _PRODUCTION:
        more(_MORE, "production is named")
    if level > Danger.SAFE and (words & _BULK or _BULK_SIGNS.search(hint.plain)):
        more(_MORE, "many things at once")
    if hint.hides:
        more(_MORE, "hidden or look-alike characters")
    if trust in _TRUST:
        more(_TRUST[trust], f"server is {trust}")
    if repeat_raises_at and repeated >= repeat_raises_at and level >= Danger.DESTRUCTIVE:
        value = max(value, VERIFY_FROM)
        factors.append(f"repeated {repeated} times")
    if not named and not specific(hint) and value < CONFIRM_FROM:
        value = CONFIRM_FROM
        factors.append("vague hint")
    return RiskScore(min(value, 100), factors)
