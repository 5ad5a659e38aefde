"""Which of the five categories a tool belongs to, and how sure that is.

The config decides; then what the node already knows of the tool's effect; then the verb in its
name. What is not known counts as EXECUTE. A category says how an operation is shown and called: it
never changes an effect, and so no decision of the policy.

READ is what only reads. Where no effect says so, a verb does that means nothing else, with no word
of change beside it, and only if the server has not said that the tool changes something.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.catalog.effects import Effect, EffectLevel
from interlock.protocol.aql.words import Category


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS: Final[dict[Category, str]] = {
    Category.DELETE: """
        delete remove purge unregister clear drop destroy erase wipe truncate uninstall unlink
        revoke archive trash hide discard prune evict unpublish del rm forget expunge deregister
        unset detach unsubscribe unfollow ban kick cleanup""",
    Category.UPDATE: """
        update edit set rename move patch merge modify change replace put write overwrite assign
        unassign adjust append prepend mark unmark toggle enable disable configure tag untag label
        relabel reorder resize transfer alter amend revise rewrite restore lock unlock pin unpin
        attach link reassign transition resolve reopen close complete approve reject accept decline
        promote demote rotate migrate fix mute unmute react vote upvote downvote rate annotate
        reschedule revert rollback reply increment decrement stage unstage grant share unshare
        follow subscribe bind unbind mount unmount protect unprotect unarchive unapprove deny scale
        upgrade downgrade rebase""",
    Category.CREATE: """
        create add upload register import insert new make generate build clone fork copy duplicate
        define upsert save store record log comment book schedule draft init initialize bootstrap
        scaffold provision allocate enroll invite reinvite remember compose mint ingest install""",
    Category.READ: """
        get list search find export count read fetch query show view describe lookup retrieve
        download check inspect browse explain compare diff summarize analyze analyse calculate
        compute convert translate preview validate status info head tail scan detect estimate lint
        measure monitor select filter aggregate display load peek poll ping recall suggest recommend
        rank rerank whoami which what glob grep stat exists is has discover enumerate extract parse
        introspect trace blame history screenshot snapshot ls cat tree pwd geocode research
        details""",
    Category.EXECUTE: """
        execute run start stop resume trigger invoke cancel pause abort restart launch call send
        post publish notify deploy pay submit dispatch emit broadcast email charge refund perform
        process apply kill terminate shutdown reboot wake suspend click navigate press type drag
        hover scroll connect disconnect login logout sync refresh retry confirm authorize
        authenticate sign encrypt decrypt push pull commit checkout test crawl scrape evaluate
        purchase buy order tweet dm sms dial print play skip spawn exec sleep wait handle release
        tap swipe fill focus reset rerun rollout emulate interact manage""",
}
_NOUNS: Final = _words("""
    comment record log order test link tag label type process email sms dm rate schedule draft book
    call store handle charge sign print play head tail tree copy release new fill focus stage share
    vote mark history status info stat what which is has details monitor filter view query scan
    trace snapshot screenshot""")
"""Verbs at the beginning of a name, unless another one ends it; elsewhere rather what it is about.
"""
_MODIFIERS: Final = _words("batch bulk multi mass force safe quick api")
"""They stand in front of verbs."""
_CHANGES: Final = _words("""
    delete remove purge unregister clear drop destroy erase wipe truncate uninstall revoke archive
    update edit set rename move patch merge modify change replace put write overwrite assign append
    create add upload register import insert upsert save""")
"""Verbs that nobody means otherwise: who says that such a tool only reads is not believed."""
_NOT_ONLY_READING: Final = _words("""
    query research extract load snapshot monitor select filter scan trace""")
"""Verbs of reading that many tools mean otherwise: `query` may run anything."""
_THEN: Final = _words("and then or plus")
"""Behind them stands a verb, whatever else it could be."""
_OF: Final = {word: category for category, words in _WORDS.items() for word in _words(words)}

_THINGS: Final = frozenset(
    {("pull", "request"), ("merge", "request"), ("check", "run"), ("check", "suite")}
)
"""What begins like a verb, and is a thing."""
_WRITING: Final = (
    frozenset(word for word, category in _OF.items() if category is not Category.READ)
    - _NOUNS
    - _words("commit build run fork post import")
)
"""Words that no tool has in its name that only reads."""
_ENDPOINTS: Final = _words("discover query manage operate authorize administer observe act control")
"""Verbs of endpoints, that no tool begins with."""
EXTERNAL: Final = _words("""
    send post publish notify deploy pay submit dispatch broadcast email charge refund purchase buy
    order tweet dm sms""")
"""What they do leaves the system: no annotation makes them harmless."""
_RISK: Final = {
    Category.READ: 0, Category.CREATE: 1, Category.UPDATE: 2, Category.EXECUTE: 3,
    Category.DELETE: 4,
}  # fmt: skip

HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"


class Judged(NamedTuple):
    """A category, and why."""

    category: Category
    confidence: str
    origin: str
    """`override`, `effects`, `annotations`, `verb` or `unknown`."""
    needs_review: bool = False
    reason: str = ""


class Verb(NamedTuple):
    """What a name says that its tool does."""

    category: Category
    word: str
    sure: bool
    """It stands where verbs stand."""


def of_method(method: str) -> Category:
    """The category of what an HTTP description offers under this method."""
    return {
        "GET": Category.READ,
        "HEAD": Category.READ,
        "OPTIONS": Category.READ,
        "PUT": Category.UPDATE,
        "PATCH": Category.UPDATE,
        "DELETE": Category.DELETE,
    }.get(method.upper(), Category.CREATE if method.upper() == "POST" else Category.EXECUTE)


def verb_of(local: str, segment: str = "") -> Verb | None:
    """What the name of an operation says, without its server. None: nothing that is known.

    The first word, else the last, else one between them; a server's own name in front of its tools
    does not count. Of two words that are joined the riskier one counts, but what makes what is not
    there is CREATE.
    """
    tokens = _without(local, segment)
    while len(tokens) > 1 and tokens[0] in _MODIFIERS:
        tokens = tokens[1:]
    last = None if tokens[-1] in _NOUNS or len(tokens) == 1 else _OF.get(tokens[-1])
    begins = (tokens[0], tokens[1].removesuffix("s") if len(tokens) > 1 else "")
    first = None if begins in _THINGS else _OF.get(tokens[0])
    if first is not None and not (last is not None and tokens[0] in _NOUNS):
        if len(tokens) > 2 and tokens[1] in ("or", "and"):
            second = _OF.get(tokens[2])
            if second is not None:
                return _joined(first, second, tokens)
        if tokens[0] == "check" and len(tokens) > 1 and tokens[1] in ("in", "out"):
            return Verb(Category.UPDATE, f"check_{tokens[1]}", True)
        return Verb(first, tokens[0], True)
    if last is not None:
        return Verb(last, tokens[-1], True)
    verb = _between([word for word in tokens[1:-1] if word not in _NOUNS])
    if verb is None:
        # That something only reads is not taken from a word that is rather a thing.
        verb = _between([word for word in tokens[1:] if _OF.get(word) is not Category.READ])
    return verb


def _without(local: str, segment: str) -> list[str]:
    """The words of a name, without its server's own in front."""
    tokens = local.split("_")
    own = segment.replace("-", "_").split("_")
    if len(tokens) > len(own) and tokens[: len(own)] == own:
        return tokens[len(own) :]
    return tokens


def _between(words: list[str]) -> Verb | None:
    """The riskiest of words that stand where verbs seldom do."""
    found = [(_RISK[_OF[word]], word) for word in words if word in _OF]
    if not found:
        return None
    word = max(found)[1]
    return Verb(_OF[word], word, False)


def _joined(first: Category, second: Category, tokens: list[str]) -> Verb:
    words = "_".join(tokens[:3])
    pair = {first, second}
    if tokens[1] == "or" and Category.CREATE in pair and Category.DELETE not in pair:
        return Verb(Category.CREATE, words, True)
    return Verb(max(first, second, key=_RISK.__getitem__), words, True)


def _changing_word(tokens: list[str], reads: str) -> tuple[str, Category] | None:
    """A word of change in a name that says it reads by `reads`, and what it makes of the tool."""
    found: tuple[str, Category] | None = None
    for at, word in enumerate(tokens):
        category = _OF.get(word, Category.READ)
        following = "" if at + 1 == len(tokens) else tokens[at + 1].removesuffix("s")
        if category is Category.READ or (word, following) in _THINGS:
            continue
        if at and tokens[at - 1] in _THEN:
            return word, category
        if found is None and word in _WRITING:
            # Behind the other verb it may be what the reading is about: that is not known.
            found = word, category if reads in tokens[at:] else Category.EXECUTE
    return found


def judge(
    local: str,
    effect: Effect,
    override: Category | None = None,
    segment: str = "",
    *,
    changes: bool = False,
) -> Judged:
    """The category of a tool of this name and effect. `changes`: its server says of it that it does
    not only read."""
    if override is not None:
        return Judged(override, HIGH, "override", reason="said by the config")
    verb = verb_of(local, segment)
    level, source = effect.level, effect.source
    if level is EffectLevel.READ_ONLY:
        return _reading(verb, source)
    if verb is None:
        if level is EffectLevel.ADDITIVE and source == "config":
            return Judged(Category.CREATE, MEDIUM, "effects", reason="only adds, says the config")
        return Judged(Category.EXECUTE, LOW, "unknown", True, "no verb in its name is known")
    confidence = HIGH if verb.sure else MEDIUM
    reason = f"the word {verb.word}"
    if level is EffectLevel.IRREVERSIBLE:
        if verb.category is Category.READ:
            # Whoever is right: something that cannot be undone is not shown among the readers.
            return Judged(
                Category.EXECUTE, MEDIUM, "annotations", True,
                f"{reason}, though it cannot be undone",
            )  # fmt: skip
        if verb.category is Category.CREATE and source == "annotations":
            return Judged(
                Category.UPDATE, MEDIUM, "annotations", reason=f"{reason}, and may overwrite"
            )
    if verb.category is Category.READ:
        return _by_name_alone(local, segment, verb, changes or source == "config")
    if verb.word in EXTERNAL:
        reason += ", which acts on the world outside"
    elif "_or_" in verb.word or verb.word == "upsert":
        reason += ": what it names may not be there yet"
    return Judged(verb.category, confidence, "verb", reason=reason)


def _by_name_alone(local: str, segment: str, verb: Verb, changes: bool) -> Judged:
    """Of a tool whose name says that it reads, while no effect does."""
    reason = f"the word {verb.word}"
    if changes:
        reason += ", though it is declared to change something"
        return Judged(Category.EXECUTE, MEDIUM, "annotations", True, reason)
    word = _changing_word(_without(local, segment), verb.word)
    if word is not None:
        return Judged(word[1], MEDIUM, "verb", True, f"{reason}, and the word {word[0]}")
    if verb.word in _NOT_ONLY_READING:
        return Judged(Category.EXECUTE, LOW, "verb", True, f"{reason}, which may do anything")
    return Judged(Category.READ, HIGH if verb.sure else MEDIUM, "verb", reason=reason)


def _reading(verb: Verb | None, source: str) -> Judged:
    """Of a tool that only reads, as far as the node knows."""
    if source == "config":
        return Judged(Category.READ, HIGH, "effects", reason="only reads, says the config")
    if verb is None or verb.category is Category.READ:
        return Judged(Category.READ, HIGH, "annotations", reason="only reads, says its server")
    joined = any(word in _CHANGES or word in EXTERNAL for word in verb.word.split("_"))
    if not joined or not verb.sure:
        return Judged(Category.READ, MEDIUM, "annotations", reason="only reads, says its server")
    return Judged(
        verb.category, MEDIUM, "verb", True,
        f"the word {verb.word}, though its server says it only reads",
    )  # fmt: skip


def is_action(name: str) -> bool:
    """Whether the name of an endpoint says what is done there, and not only with what."""
    return any(word in _OF or word in _ENDPOINTS for word in name.split("_"))
