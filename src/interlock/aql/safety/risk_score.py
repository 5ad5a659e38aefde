"""The risk score of an action, from 0 to 100, and its factors. Equal actions have equal scores.

The base is the danger of the operation if it is known, else of the words in the hint. Further words
raise the score and never lower it.
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
_TRUST_PENALTIES: Final = {"untested": 10, "generated": 5}
_PENALTY: Final = 10


def _split_words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS: Final = re.compile(r"[^\W_]+")
_VERBS: Final[dict[Danger, frozenset[str]]] = {
    Danger.SAFE: _split_words(
        "read list get search look show find check view describe count fetch summarize "
        "summarise inspect browse query open compare explain watch preview examine analyze "
        "analyse review print display see lookup retrieve cat grep ls stat diff"
    ),
    Danger.REVERSIBLE: _split_words(
        "create add write update edit change set rename copy move append insert save upload "
        "comment label assign tag draft start enable configure install build format run "
        "execute apply modify patch replace merge commit store convert import post put"
    ),
    Danger.DESTRUCTIVE: _split_words(
        "delete remove send publish deploy release pay buy order push overwrite revoke cancel "
        "disable stop kill close archive reset rollback revert terminate uninstall unlink "
        "evict ban detach email mail sms notify message invite share grant rm erase clear "
        "discard transfer sell charge refund submit"
    ),
    Danger.DANGEROUS: _split_words(
        "drop wipe purge destroy truncate shred nuke mkfs dd shutdown reboot sudo chmod chown "
        "exfiltrate bypass disarm decommission deprovision annihilate obliterate"
    ),
}
_NOUN_LIKE_VERBS: Final = _split_words(
    "email mail sms message order release share comment label tag draft store post build archive "
    "charge format push set start copy change run open print view query list count notify update "
    "review import grant invite stop reset patch commit merge"
)
"""Words that are nouns as often as verbs. They count only at the position of a verb."""
_BEFORE_A_VERB: Final = _split_words("and then to will i must shall now or next please also")
_PRODUCTION: Final = _split_words("production prod live customer customers payroll")
_BULK: Final = _split_words(
    "all every everything everyone everybody entire whole bulk mass recursive recursively "
    "any each database databases cluster"
)
_BULK_PATTERN: Final = re.compile(
    r"(?<!\w)-[a-z]{0,8}r[a-z]{0,8}f|(?<!\w)-[a-z]{0,8}f[a-z]{0,8}r|\*|--all\b"
)
_FILLER_WORDS: Final = _split_words(
    "a an the this that it its of to in on at by for from with as is are be do does doing "
    "did done i we you they he she me my our your some something anything thing things "
    "stuff work task next step action operation please now will going go continue proceed "
    "and or then just make making let lets use using tool call calling perform performing "
    "handle handling process"
)


class RiskScore(msgspec.Struct, frozen=True):
    """A risk score and its factors."""

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


def base_form(word: str) -> str:
    """Return a verb without its ending, if the tables contain the verb."""
    for ending, replacement in (
        ("ing", ""),
        ("ing", "e"),
        ("ed", ""),
        ("ed", "e"),
        ("es", ""),
        ("s", ""),
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            shortened = word[: -len(ending)]
            for form in (
                shortened + replacement,
                shortened[:-1] if shortened[-1:] == shortened[-2:-1] else "",
            ):
                if form and any(form in verbs for verbs in _VERBS.values()):
                    return form
    return word


def danger_of_hint(hint: ActionHint) -> tuple[Danger, str]:
    """Return the highest danger of the words in a hint, and its word. Unknown words count as a
    change.
    """
    worst: tuple[Danger, str] | None = None
    previous_word, is_read = "and", False
    for index, word in enumerate(words_of(hint)):
        form = base_form(word)
        word_danger = next((danger for danger, verbs in _VERBS.items() if form in verbs), None)
        is_verb = form not in _NOUN_LIKE_VERBS or previous_word in _BEFORE_A_VERB
        # "search for closed issues" closes nothing.
        is_verb = is_verb and not (is_read and word.endswith("ed"))
        if word_danger is not None and is_verb:
            is_read = is_read or (word_danger is Danger.SAFE and index == 0)
            if worst is None or word_danger > worst[0]:
                worst = (word_danger, form)
        previous_word = word
    return worst or (Danger.REVERSIBLE, "")


def is_specific(hint: ActionHint) -> bool:
    """Return whether a hint has at least two significant words, such as a verb and an object."""
    return len({word for word in words_of(hint) if word not in _FILLER_WORDS}) >= 2


def compute_score(
    hint: ActionHint,
    *,
    danger: Danger | None = None,
    pattern: str | None = None,
    trust: str = "",
    repeated: int = 0,
    repeat_raises_at: int = 0,
    is_named: bool = False,
) -> RiskScore:
    """Compute the risk score of an action.

    Args:
        danger: the danger of the operation, if it is known.
        pattern: A glob that requires approval.
        repeated: how often this action was executed in this execution.
        is_named: True if the operation is named, so that the words need not be specific.
    """
    word_danger, word = danger_of_hint(hint)
    if is_named and danger is not None:
        # The operation is known, so the words of its name add nothing.
        word_danger = danger
    level = word_danger if danger is None else max(danger, word_danger)
    value = MIDPOINTS[level]
    factors = [
        f"danger {level.label}"
        + (f" by the word '{word}'" if word and (danger is None or word_danger > danger) else "")
    ]
    words = set(words_of(hint))

    def raise_by(points: int, reason: str) -> None:
        nonlocal value
        value += points
        factors.append(f"{reason} (+{points})")

    if pattern is not None:
        raise_by(_PENALTY, f"pattern '{pattern}'")
    # Reading from production is no additional risk.
    if level > Danger.SAFE and words & _PRODUCTION:
        raise_by(_PENALTY, "production is named")
    if level > Danger.SAFE and (words & _BULK or _BULK_PATTERN.search(hint.plain)):
        raise_by(_PENALTY, "many things together")
    if hint.hides:
        raise_by(_PENALTY, "hidden or look-alike characters")
    if trust in _TRUST_PENALTIES:
        raise_by(_TRUST_PENALTIES[trust], f"server is {trust}")
    if repeat_raises_at and repeated >= repeat_raises_at and level >= Danger.DESTRUCTIVE:
        value = max(value, VERIFY_FROM)
        factors.append(f"repeated {repeated} times")
    if not is_named and not is_specific(hint) and value < CONFIRM_FROM:
        value = CONFIRM_FROM
        factors.append("vague hint")
    return RiskScore(min(value, 100), factors)
