"""Infers what a tool does from its name, description and parameters. Pure.

Used only for tools whose annotations do not say it. Inference sees words, never the code behind
them: it finds `delete_station`, it cannot find a `get_station` that deletes.

A tool is judged by the verb of its name, then by the verbs of its first sentence, then by its
parameters. Of contradicting words the worse one counts, unless it is clearly a noun
(`get_delete_status`, `list_runs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, Final

import msgspec


class EffectKind(IntEnum):
    """What the words of a tool say that it does."""

    UNKNOWN = 0
    READS = 1
    CHANGES = 2
    IRREVERSIBLE = 3


class EffectChoice(msgspec.Struct, frozen=True, gc=False):
    """A parameter whose value says what a call does, and the values that are not irreversible."""

    parameter: str
    harmless: frozenset[str]
    switch: bool = False
    """Whether false, null and leaving it out are harmless (`overwrite`)."""

    def is_harmless(self, arguments: Mapping[str, Any]) -> bool:
        value = arguments.get(self.parameter)
        if value is None or value is False:
            return self.switch
        return isinstance(value, str) and value in self.harmless


class Inference(msgspec.Struct, frozen=True, gc=False):
    """What was inferred about a tool, and from which word."""

    kind: EffectKind
    reason: str = ""
    choices: tuple[EffectChoice, ...] = ()
    """Of an irreversible tool: calls with only harmless values in these parameters are not."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DESTROYS: Final = _words("""
    delete remove purge drop destroy erase wipe truncate uninstall unlink revoke trash discard prune
    evict expunge del rm rmdir forget unregister deregister unpublish overwrite terminate shutdown
    reboot nuke cleanup obliterate bulkdelete multidelete batchdelete unset dispose delist flush
    clear reset rollback revert restore kill ban kick cancel void refund force override bypass
    vacuum reformat redact deprovision teardown decommission demolish clobber shred scrub zap empty
    deactivate suspend block blacklist invalidate expel disband uninvite undeploy offboard
    deauthorize deauthorise rmtree burn clean""")
_SENDS: Final = _words("""
    send post publish notify email tweet retweet sms dm broadcast reply forward deliver invite
    announce dial fax submit message crosspost mail rsvp respond syndicate transmit emit
    unsend""")
_PAYS: Final = _words("""
    pay purchase buy sell charge withdraw payout checkout bid trade swap donate transfer wire bet
    redeem order stake unstake mint liquidate rent spend borrow lend deposit remit reimburse
    disburse airdrop topup fund bridge tip renew""")
_EXECUTES: Final = _words("""
    execute exec run eval evaluate invoke deploy shell bash trigger dispatch call launch spawn apply
    interpret sudo terminal perform inject exploit impersonate rollout""")
_PUBLISHES: Final = _words("merge push share release promote expose publicize finalize finalise")
_GIVES_ACCESS: Final = _words(
    "grant authorize authorise elevate escalate delegate whitelist allowlist"
)
_IRREVERSIBLE: Final = _DESTROYS | _SENDS | _PAYS | _EXECUTES | _PUBLISHES | _GIVES_ACCESS
_OFTEN_NOUNS: Final = _words("""
    mail tip fund bridge deposit block clean empty burn zap respond delegate exploit blacklist
    whitelist allowlist""")
"""Verbs only as the first word of a name (`get_block`, `latest_fund`)."""

_NEVER_NOUNS: Final = _words("""
    delete remove purge destroy erase wipe truncate uninstall unlink revoke discard prune evict
    expunge del rm rmdir unregister deregister unpublish overwrite terminate obliterate dispose
    execute exec eval pay buy withdraw send notify broadcast publish nuke unset deprovision
    decommission reformat deploy undeploy rmtree deauthorize deauthorise""")
"""Words that are the verb wherever they stand in a name, unless a noun of them follows."""

_READS: Final = _words("""
    get list search find read fetch show view describe lookup retrieve check inspect browse explain
    compare diff summarize summarise analyze analyse calculate compute convert translate preview
    validate verify status info head tail scan detect estimate lint measure monitor display peek
    poll ping recall suggest recommend rank whoami which what glob grep stat exists is has discover
    enumerate extract parse introspect trace blame screenshot ls cat tree pwd geocode research
    details count query select filter aggregate export download watch wait echo look locate identify
    classify predict forecast think ask answer know tell resolve review audit profile explore
    finds gets lists returns return provides provide shows searches retrieves reads fetches
    checks display displays queries query looks looksup calculates computes converts analyzes
    analyses extracts validates lookups format render encode decode hash parse sum average
    random solve transcribe crawl scrape visit demonstrates gathers gather load loads""")
_CHANGES: Final = _words("""
    create add update edit set rename move patch modify change replace put write assign unassign
    adjust append prepend mark unmark toggle enable disable configure tag untag label relabel
    reorder resize alter amend revise rewrite lock unlock pin unpin attach detach link reassign
    transition reopen close complete approve reject accept decline demote rotate migrate fix mute
    unmute react vote upvote downvote rate annotate reschedule increment decrement stage unstage
    unapprove unshare reserve authenticate follow unfollow subscribe unsubscribe bind unbind mount
    unmount protect unprotect archive unarchive hide unhide upload register import insert new make
    generate build clone fork copy duplicate define upsert save store record log comment book
    schedule draft init initialize
    bootstrap scaffold provision allocate enroll remember compose ingest install connect disconnect
    login logout sync refresh retry open start stop pause resume restart click navigate press type
    drag hover scroll tap swipe fill focus switch go back select handle use play skip join leave
    split commit checkout add assign manage control process plan star unstar lock
    snapshot emulate interact resize zoom turn put like unlike bookmark report request train tune
    optimize upgrade downgrade scale rebase squash stash unlock test seed populate begin end finish
    draw adds creates updates edits writes sets saves moves makes generates inserts opens closes
    starts stops adjusts modifies changes uploads adds""")
_NOUN_FOLLOWS: Final = _words("""
    status statuses history histories log logs policy policies marker markers protection request
    requests preview previews rate rates info count counts details detail event events queue queues
    permission permissions option options result results output outputs job jobs id ids time times
    date dates limit limits list lists template templates config configuration settings schema type
    types state states stats statistics statistic metrics summary report reports plan plans""")
_JOINS: Final = _words("and or then plus with")
_OUTWARD: Final = _words("""
    tweet tweets payment payments transfer transfers order orders charge charges refund refunds
    payout payouts release releases announcement announcements broadcast broadcasts sms subscription
    purchase transaction transactions invitation invitations invite invites reply replies email
    emails mail message messages post posts deployment deployments""")
"""What is sent, published or paid as soon as it is made (`create_tweet`)."""
_MONEY: Final = _words("""
    subscription subscriptions billing payment payments payout payouts refund refunds transfer
    transfers""")
"""Who changes these changes what is paid."""
_BOOKED: Final = _words("""
    flight flights hotel hotels room rooms ticket tickets table ride trip car seat seats appointment
    reservation restaurant stay""")
"""Who books or reserves these owes somebody something."""
_ACCESS: Final = _words("""
    permission permissions sharing visibility acl acls collaborator collaborators ownership admin
    admins access rbac""")
"""Who changes these may open what was private, or lock somebody out."""
_UNSENT: Final = _words("draft drafts schema label labels folder rule") | (
    _NOUN_FOLLOWS - {"preview", "previews"}
)
_MAKES: Final = _words("""
    create add make new place compose process initiate complete confirm start begin issue finish
    request handle do submit schedule capture commit""")
"""Verbs of carrying out, whose object says what is done (`process_refund`)."""
_OVERWRITES: Final = _words("write save put replace store dump")
_CONTENT: Final = _words("file files object blob content contents")
_LANGUAGES: Final = _words("""
    python javascript js node nodejs repl sandbox interpreter notebook lua ruby ipython jupyter
    kernel shell console powershell perl php typescript java rust golang sql""")
_CODE: Final = _words("code source script snippet expression program statement cell")
_JOINING: Final = _words("device devices member members user users login access")
"""Who approves these lets somebody in."""
_MODIFIERS: Final = _words(
    "batch bulk multi mass safe quick api mcp tool async auto force hard try do"
)
_PREFIXES: Final = ("re", "bulk", "batch", "multi", "mass", "auto", "un", "force", "hard", "soft")
_RAW: Final = _words(
    "sql command commands cmd shell code script bash python javascript js query "
    "expression cypher graphql lua program statement statements mql aql cql"
)
"""Parameters and objects of verbs that are code in some language."""
_RUNS_CODE: Final = _words("""
    sql cmd command commands shell_command shell bash script javascript js_code python_code cypher
    code_snippet""")
"""Required text parameters of these names make a tool run code, unless its verb says otherwise."""
_MULTIPLEXERS: Final = _words(
    "manage handle control operate administer action actions operation "
    "operations request batch proxy raw"
)
_CHOOSING: Final = _words("""
    action actions operation op command cmd method mode verb subcommand function action_type
    operation_type http_method request_method""")
_CHOOSES_FREELY: Final = _words("""
    action operation op command cmd method verb subcommand http_method request_method""")
_SWITCHES: Final = _words("overwrite overwrite_existing replace_existing clobber hard_delete force")
_METHODS: Final = _words("get head options")
_UNSAFE_METHODS: Final = _words("post put patch delete")

_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SENTENCE: Final = re.compile(r"(?<=[.!?。])\s|\n|\r")
_TOKEN: Final = re.compile(r"[a-z][a-z'\-]*|[,/]")
_NOT: Final = _words(
    "not never no without don't doesn't cannot won't nothing instead avoid avoids "
    "prevents prevent non before unless than after"
)
_ADVERBS: Final = _words("""
    completely permanently irreversibly also then optionally immediately safely fully entirely
    forcefully forcibly recursively directly physically hard soft either both tool used allows allow
    you lets let can will may must this the a an to for and or that which it helps be able is
    allowing enables enable used by""")
_LINKS: Final = _words("and or then to can will may also optionally either")
_GONE: Final = re.compile(
    r"\b(?:can\s?not|can't|cannot) be (?:undone|reversed|recovered|restored)\b|\birreversibl[ey]\b|"
    r"\bpermanent(?:ly)? (?:delet|remov|eras|destroy)\w*|\bdestructive\b|"
    r"\b(?:completely |will |may |and |or )overwrit\w*|\boverwrites?\b (?:the |an |any |all )?"
    r"(?:existing|entire|whole|file|content)|"
    r"\b(?:run|execute|evaluate)s? (?:\w+ ){0,2}(?:code|javascript|scripts?|commands?|sql)\b|"
    r"\bsupport\w* [^.]{0,80}\bdelet(?:ing|ion)\b|"
    r"\barbitrary (?:\w+ )?(?:code|commands?|javascript|sql)\b|"
    r"\bhttp (?:post|put|patch|delete) requests?\b",
    re.I,
)
_FINAL: Final = re.compile(
    r"\b(?:can\s?not|can't|cannot) be (?:undone|reversed|recovered|restored)\b|"
    r"\b(?:is|are|an?) irreversible\b|\bpermanently (?:delet|remov|eras|destroy)(?:es|e|s)\b",
    re.I,
)
"""Of these, what counts although the name says that the tool reads."""
_DENIED: Final = re.compile(
    r"(?:\bnot\b|\bnever\b|\bwithout\b|n't\b|\bno\b|\bnon-?)"
    r"(?:(?!\b(?:and|but|this|it)\b)[^.,;]){0,40}$",
    re.I,
)
_OF_OTHERS: Final = re.compile(
    r"(?:\bnot\b|\bnever\b|n't\b|\bno\b|\bnon-?|\bfor\b|\bunless\b|\bprefer\b|\binstead\b|\bif\b"
    r"|\bwhen\b|\bin\b)[^.;]{0,30}$",
    re.I,
)
"""In front of `read-only`: it is not said of this tool, or not always."""
_READ_ONLY: Final = re.compile(
    r"\bread[- ]only\b(?! (?:false|replica|transaction|mode|field|prop))", re.I
)
_MOST_TEXT: Final = 2_000
_MOST_PROPERTIES: Final = 200
_MOST_VALUES: Final = 200
_MOST_PARTS: Final = 300
_DEEPEST: Final = 6

_SAID: Final = _IRREVERSIBLE - _words("""
    apply call perform order message share release promote force override stake rent mint wire
    terminal dial bid""")
"""Verbs that mean the same in a sentence as in a name."""
_THINGS: Final = frozenset({("merge", "request"), ("pull", "request"), ("check", "run")})
_FORMS: Final[dict[str, str]] = {}
for _word in _SAID:
    _FORMS[_word] = _word
    _end = "es" if _word.endswith(("s", "sh", "ch", "x", "z")) else "s"
    _FORMS[_word + _end] = _word
    if _word.endswith("y") and _word[-2] not in "aeiou":
        _FORMS[_word[:-1] + "ies"] = _word
    if _word in _NEVER_NOUNS:
        _FORMS[(_word[:-1] if _word.endswith("e") else _word) + "ing"] = _word
_FORMS.update({"running": "run", "dropping": "drop", "resetting": "reset"})
_DOERS: Final[dict[str, str]] = {
    "runner": "run", "executor": "execute", "executer": "execute", "execution": "execute",
    "deletion": "delete", "removal": "remove", "killer": "kill", "messenger": "message",
}  # fmt: skip
for _word in _NEVER_NOUNS:
    _stem = _word.removesuffix("e")
    for _ending in ("er", "ing"):
        _DOERS.setdefault(_stem + _ending, _word)
"""Nouns of a verb: the last word of names that have no verb (`code_runner`)."""
_GLUED: Final = (*sorted(word for word in _NEVER_NOUNS if len(word) > 5), "send")
_ENDINGS: Final = _words("s d r rs er ers or ors ing ed es able ion ions ment ments al als")


def split_name(name: str) -> list[str]:
    """The words of a tool's name, in lower case, each thing as one of them."""
    words: list[str] = []
    for part in _SPLIT.split(name):
        word = part.lower()
        if words and (words[-1], word.removesuffix("s")) in _THINGS:
            words[-1] += word
        elif word == "checkout" and "git" in words:
            words.append("switch")
        elif word:
            words.append(word)
    return words


def infer(name: str, description: str = "", schema: Any = None) -> Inference:
    """What a tool of this name, description and input schema does, as far as words tell."""
    words = split_name(name)
    text = description[:_MOST_TEXT]
    chosen = _choices(words, schema)
    nested = _nested_value(schema)
    switch = _destructive_switch(schema)
    if chosen is not None:
        return _narrowed(chosen, switch, text, schema) if not nested else _without_choices(chosen)
    by_name = _of_name(words)
    if by_name.kind is EffectKind.IRREVERSIBLE:
        if _claims_read_only(text) and _verb(words) in ("run", "execute", "exec", "query"):
            return Inference(EffectKind.READS, "description says `read-only`")
        return by_name
    by_text = _of_text(text, by_name.kind)
    if by_text is not None and by_text.kind is EffectKind.IRREVERSIBLE:
        return by_text
    if nested and by_name.kind is not EffectKind.READS:
        return Inference(EffectKind.IRREVERSIBLE, nested)
    if by_name.kind is EffectKind.UNKNOWN or set(words) & _MULTIPLEXERS:
        chooser = _free_choice(schema)
    else:
        chooser = _free_method(schema)
    if chooser:
        return Inference(EffectKind.IRREVERSIBLE, f"parameter `{chooser}` decides what it does")
    if by_name.kind is not EffectKind.READS or _verb(words) == "query":
        code = _runs_code(schema, by_name.kind, bool(_LANGUAGES & set(words)))
        if code and not _claims_read_only(text):
            return Inference(EffectKind.IRREVERSIBLE, f"parameter `{code}` takes code")
    if switch is not None and by_name.kind is not EffectKind.READS:
        return switch
    if by_name.kind is EffectKind.UNKNOWN and by_text is not None:
        return by_text
    return by_name


def _without_choices(inference: Inference) -> Inference:
    return msgspec.structs.replace(inference, choices=())


def _narrowed(chosen: Inference, switch: Inference | None, text: str, schema: Any) -> Inference:
    """A tool that is judged by a parameter, where nothing else makes it irreversible: what else it
    takes may do the harm, whatever the parameter says."""
    says_so = any(not _is_denied(text, found) for found in _FINAL.finditer(text))
    if says_so or _free_choice(schema) or _runs_code(schema, EffectKind.UNKNOWN, True):
        return _without_choices(chosen)
    if switch is None:
        return chosen
    if not switch.choices:
        return _without_choices(chosen)
    return msgspec.structs.replace(chosen, choices=(*chosen.choices, *switch.choices))


def _is_denied(text: str, found: re.Match[str]) -> bool:
    return bool(_DENIED.search(text[max(0, found.start() - 60) : found.start()]))


def _claims_read_only(text: str) -> bool:
    """Whether a description says of the tool itself that it only reads."""
    return any(
        not _OF_OTHERS.search(text[max(0, found.start() - 40) : found.start()])
        for found in _READ_ONLY.finditer(text)
    )


def _verb(words: list[str]) -> str:
    for word in words:
        if word not in _MODIFIERS:
            return word
    return ""


# -- the name


def _of_name(words: list[str]) -> Inference:
    if len(words) > 2 and words[0] == "api" and words[1] in ("post", "put", "patch"):
        # Made from an HTTP description: the method is no verb of the trade.
        rest = _of_name(["", *words[2:]])
        if rest.kind is EffectKind.IRREVERSIBLE:
            return rest
        return Inference(EffectKind.CHANGES, f"`{words[1]}` in its name")
    while len(words) > 1 and words[0] in _MODIFIERS:
        words = words[1:]
    words = [_base(word) for word in words]
    first, at = _leading_verb(words)
    if first is EffectKind.UNKNOWN and words and words[-1] in _DOERS:
        return Inference(EffectKind.IRREVERSIBLE, f"`{words[-1]}` in its name")
    for place, word in enumerate(words):
        if word not in _NEVER_NOUNS and not (place == at and word in _IRREVERSIBLE):
            continue
        following = words[place + 1] if place + 1 < len(words) else ""
        if first is EffectKind.READS and place > at:
            # `get_delete_status`, `list_executed`: the reading is about it.
            joined = words[place - 1] in _JOINS
            if not joined and (following in _NOUN_FOLLOWS or word not in _DESTROYS):
                continue
        return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its name")
    if first is EffectKind.READS and at + 2 < len(words):
        for place in range(at + 2, len(words)):
            if words[place - 1] in ("and", "then") and words[place] in _IRREVERSIBLE:
                return Inference(EffectKind.IRREVERSIBLE, f"`{words[place]}` in its name")
    if first is EffectKind.CHANGES or words[at : at + 1] == ["do"]:
        word = _worst_object(words[at], set(words[at + 1 :]), set(words))
        if word:
            return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its name")
    if first is EffectKind.UNKNOWN:
        return Inference(EffectKind.UNKNOWN)
    return Inference(first, f"`{words[at]}` in its name")


def _worst_object(verb: str, objects: set[str], words: set[str]) -> str:
    """The word of a name that makes a change irreversible. Empty: there is none."""
    outward = objects & _OUTWARD if verb in _MAKES else set()
    if not outward:
        outward = objects & _MONEY
    if not outward and verb in ("book", "reserve"):
        outward = objects & _BOOKED
    if outward and not objects & _UNSENT:
        return min(outward)
    opened = words & _ACCESS
    if opened and (verb != "create" or "access" not in opened):
        return min(opened)
    if verb == "approve" and words & _JOINING:
        return verb
    if verb in _OVERWRITES and objects & _CONTENT:
        return f"{verb} {min(objects & _CONTENT)}"
    return ""


def _leading_verb(words: list[str]) -> tuple[EffectKind, int]:
    """The verb of a name: its first word; else its last; else the first verb between them."""
    kinds = [
        EffectKind.UNKNOWN if place and word in _OFTEN_NOUNS else _kind_of(word)
        for place, word in enumerate(words)
    ]
    if not kinds:
        return EffectKind.UNKNOWN, 0
    if kinds[0] is not EffectKind.UNKNOWN:
        return kinds[0], 0
    if kinds[-1] is not EffectKind.UNKNOWN and (
        len(words) == 2 or not any(kind is not EffectKind.UNKNOWN for kind in kinds[1:-1])
    ):
        return kinds[-1], len(words) - 1
    for place, kind in enumerate(kinds):
        if kind is not EffectKind.UNKNOWN:
            return kind, place
    return EffectKind.UNKNOWN, 0


def _kind_of(word: str) -> EffectKind:
    if word in _IRREVERSIBLE:
        return EffectKind.IRREVERSIBLE
    if word in _CHANGES:
        return EffectKind.CHANGES
    return EffectKind.READS if word in _READS else EffectKind.UNKNOWN


def _base(word: str) -> str:
    """The verb in a word that no list has: behind a prefix (`reinvite`), or before its object in a
    name without separators (`sendmail`). The word itself where there is none."""
    if _kind_of(word) is not EffectKind.UNKNOWN:
        return word
    for prefix in _PREFIXES:
        rest = word.removeprefix(prefix)
        if rest != word and rest in _IRREVERSIBLE and rest not in _OFTEN_NOUNS:
            return rest
    for verb in _GLUED:
        rest = word.removeprefix(verb)
        if rest != word and len(rest) > 2 and rest not in _ENDINGS:
            return verb
    return word


# -- the description


def _of_text(text: str, named: EffectKind) -> Inference | None:
    """What the description says. None: nothing."""
    for found in (_FINAL if named is EffectKind.READS else _GONE).finditer(text):
        if not _is_denied(text, found):
            return Inference(
                EffectKind.IRREVERSIBLE, f"`{found.group().strip().lower()}` in its description"
            )
    first = _SENTENCE.split(text.strip(), maxsplit=1)[0].lower()
    tokens = _TOKEN.findall(first)
    if not tokens:
        return None
    if named is EffectKind.READS:
        for word in _said_verbs(tokens):
            leads = tokens[0] == word and _FORMS[word] in _DESTROYS
            if _FORMS[word] in _NEVER_NOUNS and (leads or _follows(tokens, word)):
                return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its description")
    else:
        for word in _said_verbs(tokens):
            if named is EffectKind.CHANGES and word in ("remove", "removes"):
                # `Adds or removes labels`.
                continue
            return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its description")
    for token in tokens[:12]:
        if token in _READS or (token.endswith("s") and token[:-1] in _READS):
            return Inference(EffectKind.READS, f"`{token}` in its description")
        if token in _CHANGES or (token.endswith("s") and token[:-1] in _CHANGES):
            return Inference(EffectKind.CHANGES, f"`{token}` in its description")
        if token not in _ADVERBS:
            break
    return None


def _follows(tokens: list[str], word: str) -> bool:
    """Whether a sentence says that it is done after something else (`gets it, then deletes it`).
    Behind `or` it may be only one of several things that others can do."""
    back = tokens.index(word) - 1
    while back >= 0 and tokens[back] in _ADVERBS - _LINKS:
        back -= 1
    return back >= 0 and tokens[back] in ("and", "then")


def _said_verbs(tokens: list[str]) -> Iterator[str]:
    """Irreversible verbs where a sentence has its verbs: first, or behind `and`, `or`, `to`."""
    for place, token in enumerate(tokens):
        word = _FORMS.get(token)
        if word is None:
            continue
        before = tokens[:place]
        if set(before[-4:]) & _NOT:
            continue
        if all(each in _ADVERBS for each in before):
            yield token
            continue
        back = place - 1
        while back >= 0 and tokens[back] in _ADVERBS - _LINKS:
            back -= 1
        if back >= 0 and tokens[back] in ("and", "or", "then", ",", "/") and word in _NEVER_NOUNS:
            yield token


# -- the parameters


def _properties(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(found, Mapping):
        return
    for number, (name, about) in enumerate(found.items()):
        if number >= _MOST_PROPERTIES:
            return
        if isinstance(name, str) and isinstance(about, Mapping):
            yield name, _resolved(about, schema)


def _resolved(about: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema, or what it refers to in the same schema (`#/$defs/Action`)."""
    place = about.get("$ref")
    if not isinstance(place, str) or not place.startswith("#/"):
        return about
    found: Any = schema
    for step in place[2:].split("/"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else about


def _destructive_switch(schema: Any) -> Inference | None:
    """Of a tool that destroys only when a parameter says so."""
    found = [
        (name, about)
        for name, about in _properties(schema)
        if "_".join(split_name(name)) in _SWITCHES
    ]
    if not found:
        return None
    off = all(about.get("default") in (False, None) for _, about in found)
    choices = (
        tuple(EffectChoice(name, frozenset(), switch=True) for name, _ in found) if off else ()
    )
    return Inference(EffectKind.IRREVERSIBLE, f"parameter `{found[0][0]}`", choices)


def _nested_value(schema: Any) -> str:
    """Which value of a parameter inside of another one is irreversible. Empty: none. Calls are not
    judged one by one by such values."""
    if not isinstance(schema, Mapping):
        return ""
    parts: list[tuple[Mapping[str, Any], int]] = [(schema, 0)]
    for number, (part, depth) in enumerate(parts):
        if number >= _MOST_PARTS:
            break
        below: list[Any] = [part.get("items")]
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(part.get(union), list):
                below += part[union][:_MOST_VALUES]
        properties = part.get("properties")
        named = properties.items() if isinstance(properties, Mapping) else ()
        for name, said in islice(named, _MOST_PROPERTIES):
            if not isinstance(said, Mapping):
                continue
            about = _resolved(said, schema)
            if number and "_".join(split_name(str(name))) in _CHOOSING:
                values = _values(about) or (about.get("const"),)
                for value in values:
                    if isinstance(value, str) and _of_value(value) is EffectKind.IRREVERSIBLE:
                        return f"`{value}` among the values of `{name}`"
            below.append(about)
        if depth < _DEEPEST:
            parts += [
                (_resolved(each, schema), depth + 1) for each in below if isinstance(each, Mapping)
            ]
    return ""


def _values(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts that a parameter may be, where its schema lists them all."""
    listed = about.get("enum")
    if not isinstance(listed, list):
        for union in ("anyOf", "oneOf"):
            parts = about.get(union)
            if isinstance(parts, list):
                listed = []
                for part in parts[:_MOST_VALUES]:
                    if isinstance(part, Mapping):
                        if isinstance(part.get("enum"), list):
                            listed += part["enum"]
                        elif "const" in part:
                            listed.append(part["const"])
                break
    if not isinstance(listed, list):
        return ()
    return tuple(one for one in listed[:_MOST_VALUES] if isinstance(one, str))


def _choices(words: list[str], schema: Any) -> Inference | None:
    """Of a tool that does one of several things, by the value of a parameter."""
    found: list[EffectChoice] = []
    worst = ""
    by_name = _of_name(words)
    for name, about in _properties(schema):
        if "_".join(split_name(name)) not in _CHOOSING:
            continue
        values = _values(about)
        kinds = {value: _of_value(value) for value in values}
        if by_name.kind is EffectKind.READS and not any(
            value.lower() in _IRREVERSIBLE | _UNSAFE_METHODS for value in values
        ):
            # `list_todos(action=merge_train_removed)`: it filters.
            continue
        bad = [value for value, kind in kinds.items() if kind is EffectKind.IRREVERSIBLE]
        if not bad:
            continue
        harmless = frozenset(
            value for value, kind in kinds.items() if kind in (EffectKind.READS, EffectKind.CHANGES)
        )
        found.append(EffectChoice(name, harmless))
        worst = worst or f"`{bad[0]}` among the values of `{name}`"
    if not found:
        return None
    if by_name.kind is EffectKind.IRREVERSIBLE and not set(words) & (_MULTIPLEXERS | _EXECUTES):
        # `delete_item(mode=soft|delete)`: no value makes it harmless.
        return None
    return Inference(EffectKind.IRREVERSIBLE, worst, tuple(found))


def _free_choice(schema: Any) -> str:
    """The name of a parameter that chooses what is done, and may be any text."""
    for name, about in _properties(schema):
        spelled = "_".join(split_name(name))
        if spelled in _CHOOSES_FREELY and about.get("type") == "string" and not _values(about):
            return name
    return ""


def _free_method(schema: Any) -> str:
    """The name of a parameter that is the HTTP method of a request, and may be any text."""
    names = {"_".join(split_name(name)): (name, about) for name, about in _properties(schema)}
    for spelled in ("http_method", "request_method", "method"):
        name, about = names.get(spelled, ("", {}))
        is_request = spelled != "method" or bool({"url", "uri"} & names.keys())
        if name and is_request and about.get("type") == "string" and not _values(about):
            return name
    return ""


def _of_value(value: str) -> EffectKind:
    lowered = value.lower()
    if lowered in _UNSAFE_METHODS:
        return EffectKind.IRREVERSIBLE
    words = split_name(value)
    if not words:
        return EffectKind.UNKNOWN
    if lowered in _METHODS:
        return EffectKind.READS
    return _of_name(words).kind


def _runs_code(schema: Any, named: EffectKind, languages: bool) -> str:
    """The name of a parameter that takes code to run. Empty: there is none.

    Args:
        languages: The tool's name has a programming language in it.
    """
    for name, about in _properties(schema):
        spelled = "_".join(split_name(name))
        if not (spelled in _RUNS_CODE or (languages and spelled in _CODE)) or about.get(
            "type"
        ) not in ("string", "array", None):
            continue
        if _values(about):
            continue
        if named is EffectKind.CHANGES and spelled in ("script", "command", "commands", "cmd"):
            # `create_job(command)` keeps it for later.
            continue
        return name
    return ""
