"""Inference of a tool's effect from its name, description and parameters. Pure.

It is used only for tools without conclusive annotations. It sees words, not code: it recognizes
`delete_station`, but not a `get_station` that deletes.

The verb of the name decides first, then the verbs of the first sentence, then the parameters. Of
contradicting words the worse wins, unless it is clearly a noun (`get_delete_status`, `list_runs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any, Final

import msgspec


class EffectKind(IntEnum):
    """The effect that the words of a tool indicate."""

    UNKNOWN = 0
    READS = 1
    CHANGES = 2
    IRREVERSIBLE = 3


class EffectChoice(msgspec.Struct, frozen=True, gc=False):
    """A parameter whose value decides what a call does, and its harmless values."""

    parameter: str
    harmless: frozenset[str]
    is_switch: bool = False
    """True if false, null and omission are harmless (`overwrite`)."""

    def is_harmless(self, arguments: Mapping[str, Any]) -> bool:
        value = arguments.get(self.parameter)
        if value is None or value is False:
            return self.is_switch
        return isinstance(value, str) and value in self.harmless


class Inference(msgspec.Struct, frozen=True, gc=False):
    """The inferred effect of a tool, and the decisive word."""

    kind: EffectKind
    reason: str = ""
    choices: tuple[EffectChoice, ...] = ()
    """For an irreversible tool: calls with only harmless values in these parameters are not."""


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DESTROYING: Final = _split_words("""
    delete remove purge drop destroy erase wipe truncate uninstall unlink revoke trash discard prune
    evict expunge del rm rmdir forget unregister deregister unpublish overwrite terminate shutdown
    reboot nuke cleanup obliterate bulkdelete multidelete batchdelete unset dispose delist flush
    clear reset rollback revert restore kill ban kick cancel void refund force override bypass
    vacuum reformat redact deprovision teardown decommission demolish clobber shred scrub zap empty
    deactivate suspend block blacklist invalidate expel disband uninvite undeploy offboard
    deauthorize deauthorise rmtree burn clean""")
_SENDING: Final = _split_words("""
    send post publish notify email tweet retweet sms dm broadcast reply forward deliver invite
    announce dial fax submit message crosspost mail rsvp respond syndicate transmit emit
    unsend""")
_PAYING: Final = _split_words("""
    pay purchase buy sell charge withdraw payout checkout bid trade swap donate transfer wire bet
    redeem order stake unstake mint liquidate rent spend borrow lend deposit remit reimburse
    disburse airdrop topup fund bridge tip renew""")
_EXECUTING: Final = _split_words("""
    execute exec run eval evaluate invoke deploy shell bash trigger dispatch call launch spawn apply
    interpret sudo terminal perform inject exploit impersonate rollout""")
_PUBLISHING: Final = _split_words(
    "merge push share release promote expose publicize finalize finalise"
)
_GRANTING_ACCESS: Final = _split_words(
    "grant authorize authorise elevate escalate delegate whitelist allowlist"
)
_IRREVERSIBLE: Final = (
    _DESTROYING | _SENDING | _PAYING | _EXECUTING | _PUBLISHING | _GRANTING_ACCESS
)
_OFTEN_NOUNS: Final = _split_words("""
    mail tip fund bridge deposit block clean empty burn zap respond delegate exploit blacklist
    whitelist allowlist""")
"""Words that are verbs only at the beginning of a name (`get_block`, `latest_fund`)."""

_NEVER_NOUNS: Final = _split_words("""
    delete remove purge destroy erase wipe truncate uninstall unlink revoke discard prune evict
    expunge del rm rmdir unregister deregister unpublish overwrite terminate obliterate dispose
    execute exec eval pay buy withdraw send notify broadcast publish nuke unset deprovision
    decommission reformat deploy undeploy rmtree deauthorize deauthorise""")
"""Words that are verbs anywhere in a name, unless a noun follows."""

_READING: Final = _split_words("""
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
_CHANGING: Final = _split_words("""
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
_FOLLOWING_NOUNS: Final = _split_words("""
    status statuses history histories log logs policy policies marker markers protection request
    requests preview previews rate rates info count counts details detail event events queue queues
    permission permissions option options result results output outputs job jobs id ids time times
    date dates limit limits list lists template templates config configuration settings schema type
    types state states stats statistics statistic metrics summary report reports plan plans""")
_CONJUNCTIONS: Final = _split_words("and or then plus with")
_OUTWARD_OBJECTS: Final = _split_words("""
    tweet tweets payment payments transfer transfers order orders charge charges refund refunds
    payout payouts release releases announcement announcements broadcast broadcasts sms subscription
    purchase transaction transactions invitation invitations invite invites reply replies email
    emails mail message messages post posts deployment deployments""")
"""Objects that are sent, published or paid as soon as they are created (`create_tweet`)."""
_PAYMENT_OBJECTS: Final = _split_words("""
    subscription subscriptions billing payment payments payout payouts refund refunds transfer
    transfers""")
"""Changes of these objects change payments."""
_BOOKING_OBJECTS: Final = _split_words("""
    flight flights hotel hotels room rooms ticket tickets table ride trip car seat seats appointment
    reservation restaurant stay""")
"""Booking or reserving these objects creates an obligation."""
_ACCESS_OBJECTS: Final = _split_words("""
    permission permissions sharing visibility acl acls collaborator collaborators ownership admin
    admins access rbac""")
"""Changes of these objects may expose private data or lock users out."""
_NOT_SENT_OBJECTS: Final = _split_words("draft drafts schema label labels folder rule") | (
    _FOLLOWING_NOUNS - {"preview", "previews"}
)
_CREATING_VERBS: Final = _split_words("""
    create add make new place compose process initiate complete confirm start begin issue finish
    request handle do submit schedule capture commit""")
"""Verbs whose object determines the effect (`process_refund`)."""
_OVERWRITING_VERBS: Final = _split_words("write save put replace store dump")
_CONTENT_OBJECTS: Final = _split_words("file files object blob content contents")
_LANGUAGES: Final = _split_words("""
    python javascript js node nodejs repl sandbox interpreter notebook lua ruby ipython jupyter
    kernel shell console powershell perl php typescript java rust golang sql""")
_CODE: Final = _split_words("code source script snippet expression program statement cell")
_MEMBERSHIP_OBJECTS: Final = _split_words("device devices member members user users login access")
"""Approving these objects gives somebody access."""
_MODIFIERS: Final = _split_words(
    "batch bulk multi mass safe quick api mcp tool async auto force hard try do"
)
_PREFIXES: Final = ("re", "bulk", "batch", "multi", "mass", "auto", "un", "force", "hard", "soft")
_CODE_OBJECTS: Final = _split_words(
    "sql command commands cmd shell code script bash python javascript js query "
    "expression cypher graphql lua program statement statements mql aql cql"
)
"""Parameters and objects of verbs that are code in some language."""
_CODE_PARAMETERS: Final = _split_words("""
    sql cmd command commands shell_command shell bash script javascript js_code python_code cypher
    code_snippet""")
"""Required text parameters with these names make a tool run code, unless its verb differs."""
_MULTIPLEXERS: Final = _split_words(
    "manage handle control operate administer action actions operation "
    "operations request batch proxy raw"
)
_CHOICE_PARAMETERS: Final = _split_words("""
    action actions operation op command cmd method mode verb subcommand function action_type
    operation_type http_method request_method""")
_FREE_CHOICE_PARAMETERS: Final = _split_words("""
    action operation op command cmd method verb subcommand http_method request_method""")
_SWITCH_PARAMETERS: Final = _split_words(
    "overwrite overwrite_existing replace_existing clobber hard_delete force"
)
_SAFE_METHODS: Final = _split_words("get head options")
_UNSAFE_METHODS: Final = _split_words("post put patch delete")

_SPLIT: Final = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SENTENCE: Final = re.compile(r"(?<=[.!?。])\s|\n|\r")
_TOKEN: Final = re.compile(r"[a-z][a-z'\-]*|[,/]")
_NEGATIONS: Final = _split_words(
    "not never no without don't doesn't cannot won't nothing instead avoid avoids "
    "prevents prevent non before unless than after"
)
_ADVERBS: Final = _split_words("""
    completely permanently irreversibly also then optionally immediately safely fully entirely
    forcefully forcibly recursively directly physically hard soft either both tool used allows allow
    you lets let can will may must this the a an to for and or that which it helps be able is
    allowing enables enable used by""")
_LINK_WORDS: Final = _split_words("and or then to can will may also optionally either")
_IRREVERSIBLE_PHRASES: Final = re.compile(
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
_DECISIVE_PHRASES: Final = re.compile(
    r"\b(?:can\s?not|can't|cannot) be (?:undone|reversed|recovered|restored)\b|"
    r"\b(?:is|are|an?) irreversible\b|\bpermanently (?:delet|remov|eras|destroy)(?:es|e|s)\b",
    re.I,
)
"""The phrases that also count if the name says that the tool reads."""
_NEGATED_BEFORE: Final = re.compile(
    r"(?:\bnot\b|\bnever\b|\bwithout\b|n't\b|\bno\b|\bnon-?)"
    r"(?:(?!\b(?:and|but|this|it)\b)[^.,;]){0,40}$",
    re.I,
)
_QUALIFIED_BEFORE: Final = re.compile(
    r"(?:\bnot\b|\bnever\b|n't\b|\bno\b|\bnon-?|\bfor\b|\bunless\b|\bprefer\b|\binstead\b|\bif\b"
    r"|\bwhen\b|\bin\b)[^.;]{0,30}$",
    re.I,
)
"""Words before `read-only`: the claim is not about this tool, or not unconditional."""
_READ_ONLY: Final = re.compile(
    r"\bread[- ]only\b(?! (?:false|replica|transaction|mode|field|prop))", re.I
)
_MAX_TEXT_LENGTH: Final = 2_000
_MAX_PROPERTIES: Final = 200
_MAX_VALUES: Final = 200
_MAX_SCHEMA_PARTS: Final = 300
_MAX_DEPTH: Final = 6

_VERBS_IN_SENTENCES: Final = _IRREVERSIBLE - _split_words("""
    apply call perform order message share release promote force override stake rent mint wire
    terminal dial bid""")
"""Verbs with the same meaning in a sentence as in a name."""
_COMPOUND_NOUNS: Final = frozenset({("merge", "request"), ("pull", "request"), ("check", "run")})
_FORMS: Final[dict[str, str]] = {}
for _word in _VERBS_IN_SENTENCES:
    _FORMS[_word] = _word
    _end = "es" if _word.endswith(("s", "sh", "ch", "x", "z")) else "s"
    _FORMS[_word + _end] = _word
    if _word.endswith("y") and _word[-2] not in "aeiou":
        _FORMS[_word[:-1] + "ies"] = _word
    if _word in _NEVER_NOUNS:
        _FORMS[(_word[:-1] if _word.endswith("e") else _word) + "ing"] = _word
_FORMS.update({"running": "run", "dropping": "drop", "resetting": "reset"})
_AGENT_NOUNS: Final[dict[str, str]] = {
    "runner": "run", "executor": "execute", "executer": "execute", "execution": "execute",
    "deletion": "delete", "removal": "remove", "killer": "kill", "messenger": "message",
}  # fmt: skip
for _word in _NEVER_NOUNS:
    _stem = _word.removesuffix("e")
    for _ending in ("er", "ing"):
        _AGENT_NOUNS.setdefault(_stem + _ending, _word)
"""Nouns of a verb: the last word of names without a verb (`code_runner`)."""
_PREFIX_VERBS: Final = (*sorted(word for word in _NEVER_NOUNS if len(word) > 5), "send")
_SUFFIXES: Final = _split_words("s d r rs er ers or ors ing ed es able ion ions ment ments al als")


def split_name(name: str) -> list[str]:
    """Split a tool's name into words in lower case. A compound noun is one word."""
    words: list[str] = []
    for part in _SPLIT.split(name):
        word = part.lower()
        if words and (words[-1], word.removesuffix("s")) in _COMPOUND_NOUNS:
            words[-1] += word
        elif word == "checkout" and "git" in words:
            words.append("switch")
        elif word:
            words.append(word)
    return words


def infer(name: str, description: str = "", schema: Any = None) -> Inference:
    """Infer the effect of a tool from its name, description and input schema."""
    words = split_name(name)
    text = description[:_MAX_TEXT_LENGTH]
    choice_inference = _find_choices(words, schema)
    nested_value = _find_nested_value(schema)
    switch = _find_destructive_switch(schema)
    if choice_inference is not None:
        return (
            _restrict_choices(choice_inference, switch, text, schema)
            if not nested_value
            else _without_choices(choice_inference)
        )
    name_inference = _infer_from_name(words)
    if name_inference.kind is EffectKind.IRREVERSIBLE:
        if _claims_read_only(text) and _find_verb(words) in ("run", "execute", "exec", "query"):
            return Inference(EffectKind.READS, "description says `read-only`")
        return name_inference
    text_inference = _infer_from_text(text, name_inference.kind)
    if text_inference is not None and text_inference.kind is EffectKind.IRREVERSIBLE:
        return text_inference
    if nested_value and name_inference.kind is not EffectKind.READS:
        return Inference(EffectKind.IRREVERSIBLE, nested_value)
    if name_inference.kind is EffectKind.UNKNOWN or set(words) & _MULTIPLEXERS:
        chooser = _find_free_choice(schema)
    else:
        chooser = _find_free_method(schema)
    if chooser:
        return Inference(EffectKind.IRREVERSIBLE, f"parameter `{chooser}` decides what it does")
    if name_inference.kind is not EffectKind.READS or _find_verb(words) == "query":
        code = _find_code_parameter(schema, name_inference.kind, bool(_LANGUAGES & set(words)))
        if code and not _claims_read_only(text):
            return Inference(EffectKind.IRREVERSIBLE, f"parameter `{code}` takes code")
    if switch is not None and name_inference.kind is not EffectKind.READS:
        return switch
    if name_inference.kind is EffectKind.UNKNOWN and text_inference is not None:
        return text_inference
    return name_inference


def _without_choices(inference: Inference) -> Inference:
    return msgspec.structs.replace(inference, choices=())


def _restrict_choices(
    choice_inference: Inference, switch: Inference | None, text: str, schema: Any
) -> Inference:
    """Remove the choices of a tool if something else makes it irreversible, such as another
    parameter."""
    is_decisive = any(not _is_denied(text, found) for found in _DECISIVE_PHRASES.finditer(text))
    if (
        is_decisive
        or _find_free_choice(schema)
        or _find_code_parameter(schema, EffectKind.UNKNOWN, True)
    ):
        return _without_choices(choice_inference)
    if switch is None:
        return choice_inference
    if not switch.choices:
        return _without_choices(choice_inference)
    return msgspec.structs.replace(
        choice_inference, choices=(*choice_inference.choices, *switch.choices)
    )


def _is_denied(text: str, match: re.Match[str]) -> bool:
    return bool(_NEGATED_BEFORE.search(text[max(0, match.start() - 60) : match.start()]))


def _claims_read_only(text: str) -> bool:
    """Return whether a description says of the tool itself that it only reads."""
    return any(
        not _QUALIFIED_BEFORE.search(text[max(0, match.start() - 40) : match.start()])
        for match in _READ_ONLY.finditer(text)
    )


def _find_verb(words: list[str]) -> str:
    for word in words:
        if word not in _MODIFIERS:
            return word
    return ""


# -- the name


def _infer_from_name(words: list[str]) -> Inference:
    if len(words) > 2 and words[0] == "api" and words[1] in ("post", "put", "patch"):
        # Generated from an HTTP API: the method is not the verb of the tool.
        rest_inference = _infer_from_name(["", *words[2:]])
        if rest_inference.kind is EffectKind.IRREVERSIBLE:
            return rest_inference
        return Inference(EffectKind.CHANGES, f"`{words[1]}` in its name")
    while len(words) > 1 and words[0] in _MODIFIERS:
        words = words[1:]
    words = [_find_base_verb(word) for word in words]
    verb_kind, verb_index = _leading_verb(words)
    if verb_kind is EffectKind.UNKNOWN and words and words[-1] in _AGENT_NOUNS:
        return Inference(EffectKind.IRREVERSIBLE, f"`{words[-1]}` in its name")
    for place, word in enumerate(words):
        if word not in _NEVER_NOUNS and not (place == verb_index and word in _IRREVERSIBLE):
            continue
        next_word = words[place + 1] if place + 1 < len(words) else ""
        if verb_kind is EffectKind.READS and place > verb_index:
            # `get_delete_status`, `list_executed`: the tool reads about it.
            is_joined = words[place - 1] in _CONJUNCTIONS
            if not is_joined and (next_word in _FOLLOWING_NOUNS or word not in _DESTROYING):
                continue
        return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its name")
    if verb_kind is EffectKind.READS and verb_index + 2 < len(words):
        for place in range(verb_index + 2, len(words)):
            if words[place - 1] in ("and", "then") and words[place] in _IRREVERSIBLE:
                return Inference(EffectKind.IRREVERSIBLE, f"`{words[place]}` in its name")
    if verb_kind is EffectKind.CHANGES or words[verb_index : verb_index + 1] == ["do"]:
        word = _find_worst_object(words[verb_index], set(words[verb_index + 1 :]), set(words))
        if word:
            return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its name")
    if verb_kind is EffectKind.UNKNOWN:
        return Inference(EffectKind.UNKNOWN)
    return Inference(verb_kind, f"`{words[verb_index]}` in its name")


def _find_worst_object(verb: str, objects: set[str], words: set[str]) -> str:
    """Return the word of a name that makes a change irreversible. Empty: there is none."""
    outward = objects & _OUTWARD_OBJECTS if verb in _CREATING_VERBS else set()
    if not outward:
        outward = objects & _PAYMENT_OBJECTS
    if not outward and verb in ("book", "reserve"):
        outward = objects & _BOOKING_OBJECTS
    if outward and not objects & _NOT_SENT_OBJECTS:
        return min(outward)
    access = words & _ACCESS_OBJECTS
    if access and (verb != "create" or "access" not in access):
        return min(access)
    if verb == "approve" and words & _MEMBERSHIP_OBJECTS:
        return verb
    if verb in _OVERWRITING_VERBS and objects & _CONTENT_OBJECTS:
        return f"{verb} {min(objects & _CONTENT_OBJECTS)}"
    return ""


def _leading_verb(words: list[str]) -> tuple[EffectKind, int]:
    """Return the verb of a name: the first word, else the last, else the first verb in between."""
    kinds = [
        EffectKind.UNKNOWN if place and word in _OFTEN_NOUNS else _classify_word(word)
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


def _classify_word(word: str) -> EffectKind:
    if word in _IRREVERSIBLE:
        return EffectKind.IRREVERSIBLE
    if word in _CHANGING:
        return EffectKind.CHANGES
    return EffectKind.READS if word in _READING else EffectKind.UNKNOWN


def _find_base_verb(word: str) -> str:
    """Return the verb in an unknown word: after a prefix (`reinvite`), or before its object in a
    name without separators (`sendmail`). Return the word itself if there is none."""
    if _classify_word(word) is not EffectKind.UNKNOWN:
        return word
    for prefix in _PREFIXES:
        rest = word.removeprefix(prefix)
        if rest != word and rest in _IRREVERSIBLE and rest not in _OFTEN_NOUNS:
            return rest
    for verb in _PREFIX_VERBS:
        rest = word.removeprefix(verb)
        if rest != word and len(rest) > 2 and rest not in _SUFFIXES:
            return verb
    return word


# -- the description


def _infer_from_text(text: str, name_kind: EffectKind) -> Inference | None:
    """Infer the effect from the description. None: it does not say."""
    for match in (
        _DECISIVE_PHRASES if name_kind is EffectKind.READS else _IRREVERSIBLE_PHRASES
    ).finditer(text):
        if not _is_denied(text, match):
            return Inference(
                EffectKind.IRREVERSIBLE, f"`{match.group().strip().lower()}` in its description"
            )
    first_sentence = _SENTENCE.split(text.strip(), maxsplit=1)[0].lower()
    tokens = _TOKEN.findall(first_sentence)
    if not tokens:
        return None
    if name_kind is EffectKind.READS:
        for word in _find_verbs(tokens):
            is_leading = tokens[0] == word and _FORMS[word] in _DESTROYING
            if _FORMS[word] in _NEVER_NOUNS and (is_leading or _follows_conjunction(tokens, word)):
                return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its description")
    else:
        for word in _find_verbs(tokens):
            if name_kind is EffectKind.CHANGES and word in ("remove", "removes"):
                # `Adds or removes labels`.
                continue
            return Inference(EffectKind.IRREVERSIBLE, f"`{word}` in its description")
    for token in tokens[:12]:
        if token in _READING or (token.endswith("s") and token[:-1] in _READING):
            return Inference(EffectKind.READS, f"`{token}` in its description")
        if token in _CHANGING or (token.endswith("s") and token[:-1] in _CHANGING):
            return Inference(EffectKind.CHANGES, f"`{token}` in its description")
        if token not in _ADVERBS:
            break
    return None


def _follows_conjunction(tokens: list[str], word: str) -> bool:
    """Return whether a sentence says that the action follows another one (`gets it, then deletes
    it`). After `or` it may be one of several actions of other tools."""
    index = tokens.index(word) - 1
    while index >= 0 and tokens[index] in _ADVERBS - _LINK_WORDS:
        index -= 1
    return index >= 0 and tokens[index] in ("and", "then")


def _find_verbs(tokens: list[str]) -> Iterator[str]:
    """Yield irreversible verbs at verb positions: first, or after `and`, `or`, `to`."""
    for place, token in enumerate(tokens):
        word = _FORMS.get(token)
        if word is None:
            continue
        before = tokens[:place]
        if set(before[-4:]) & _NEGATIONS:
            continue
        if all(preceding in _ADVERBS for preceding in before):
            yield token
            continue
        index = place - 1
        while index >= 0 and tokens[index] in _ADVERBS - _LINK_WORDS:
            index -= 1
        if index >= 0 and tokens[index] in ("and", "or", "then", ",", "/") and word in _NEVER_NOUNS:
            yield token


# -- the parameters


def _properties(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return
    for number, (name, schema_part) in enumerate(properties.items()):
        if number >= _MAX_PROPERTIES:
            return
        if isinstance(name, str) and isinstance(schema_part, Mapping):
            yield name, _resolve_reference(schema_part, schema)


def _resolve_reference(
    schema_part: Mapping[str, Any], schema: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a part of a schema, or the part of the same schema that it refers to."""
    reference = schema_part.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema_part
    target: Any = schema
    for step in reference[2:].split("/"):
        target = target.get(step) if isinstance(target, Mapping) else None
    return target if isinstance(target, Mapping) else schema_part


def _find_destructive_switch(schema: Any) -> Inference | None:
    """Return the effect of a tool that destroys only if a parameter says so."""
    switches = [
        (name, schema_part)
        for name, schema_part in _properties(schema)
        if "_".join(split_name(name)) in _SWITCH_PARAMETERS
    ]
    if not switches:
        return None
    is_off_by_default = all(
        schema_part.get("default") in (False, None) for _, schema_part in switches
    )
    choices = (
        tuple(EffectChoice(name, frozenset(), is_switch=True) for name, _ in switches)
        if is_off_by_default
        else ()
    )
    return Inference(EffectKind.IRREVERSIBLE, f"parameter `{switches[0][0]}`", choices)


def _find_nested_value(schema: Any) -> str:
    """Return which value of a nested parameter is irreversible. Empty: none. Calls are not
    classified by such values."""
    if not isinstance(schema, Mapping):
        return ""
    parts: list[tuple[Mapping[str, Any], int]] = [(schema, 0)]
    for number, (part, depth) in enumerate(parts):
        if number >= _MAX_SCHEMA_PARTS:
            break
        children: list[Any] = [part.get("items")]
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(part.get(union), list):
                children += part[union][:_MAX_VALUES]
        properties = part.get("properties")
        members = properties.items() if isinstance(properties, Mapping) else ()
        for name, property_schema in islice(members, _MAX_PROPERTIES):
            if not isinstance(property_schema, Mapping):
                continue
            schema_part = _resolve_reference(property_schema, schema)
            if number and "_".join(split_name(str(name))) in _CHOICE_PARAMETERS:
                values = _find_values(schema_part) or (schema_part.get("const"),)
                for value in values:
                    if isinstance(value, str) and _classify_value(value) is EffectKind.IRREVERSIBLE:
                        return f"`{value}` among the values of `{name}`"
            children.append(schema_part)
        if depth < _MAX_DEPTH:
            parts += [
                (_resolve_reference(child, schema), depth + 1)
                for child in children
                if isinstance(child, Mapping)
            ]
    return ""


def _find_values(schema_part: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the text values of a parameter, if its schema lists all of them."""
    values = schema_part.get("enum")
    if not isinstance(values, list):
        for union in ("anyOf", "oneOf"):
            parts = schema_part.get(union)
            if isinstance(parts, list):
                values = []
                for part in parts[:_MAX_VALUES]:
                    if isinstance(part, Mapping):
                        if isinstance(part.get("enum"), list):
                            values += part["enum"]
                        elif "const" in part:
                            values.append(part["const"])
                break
    if not isinstance(values, list):
        return ()
    return tuple(value for value in values[:_MAX_VALUES] if isinstance(value, str))


def _find_choices(words: list[str], schema: Any) -> Inference | None:
    """Return the effect of a tool whose action depends on the value of a parameter."""
    choices: list[EffectChoice] = []
    worst = ""
    name_inference = _infer_from_name(words)
    for name, schema_part in _properties(schema):
        if "_".join(split_name(name)) not in _CHOICE_PARAMETERS:
            continue
        values = _find_values(schema_part)
        kinds = {value: _classify_value(value) for value in values}
        if name_inference.kind is EffectKind.READS and not any(
            value.lower() in _IRREVERSIBLE | _UNSAFE_METHODS for value in values
        ):
            # `list_todos(action=merge_train_removed)`: the parameter is a filter.
            continue
        irreversible_values = [
            value for value, kind in kinds.items() if kind is EffectKind.IRREVERSIBLE
        ]
        if not irreversible_values:
            continue
        harmless = frozenset(
            value for value, kind in kinds.items() if kind in (EffectKind.READS, EffectKind.CHANGES)
        )
        choices.append(EffectChoice(name, harmless))
        worst = worst or f"`{irreversible_values[0]}` among the values of `{name}`"
    if not choices:
        return None
    if name_inference.kind is EffectKind.IRREVERSIBLE and not set(words) & (
        _MULTIPLEXERS | _EXECUTING
    ):
        # `delete_item(mode=soft|delete)`: no value is harmless.
        return None
    return Inference(EffectKind.IRREVERSIBLE, worst, tuple(choices))


def _find_free_choice(schema: Any) -> str:
    """Return the name of a parameter that selects the action and accepts any text."""
    for name, schema_part in _properties(schema):
        normalized = "_".join(split_name(name))
        if (
            normalized in _FREE_CHOICE_PARAMETERS
            and schema_part.get("type") == "string"
            and not _find_values(schema_part)
        ):
            return name
    return ""


def _find_free_method(schema: Any) -> str:
    """Return the name of a parameter that is an HTTP method and accepts any text."""
    names = {
        "_".join(split_name(name)): (name, schema_part) for name, schema_part in _properties(schema)
    }
    for normalized in ("http_method", "request_method", "method"):
        name, schema_part = names.get(normalized, ("", {}))
        is_request = normalized != "method" or bool({"url", "uri"} & names.keys())
        if (
            name
            and is_request
            and schema_part.get("type") == "string"
            and not _find_values(schema_part)
        ):
            return name
    return ""


def _classify_value(value: str) -> EffectKind:
    lowered = value.lower()
    if lowered in _UNSAFE_METHODS:
        return EffectKind.IRREVERSIBLE
    words = split_name(value)
    if not words:
        return EffectKind.UNKNOWN
    if lowered in _SAFE_METHODS:
        return EffectKind.READS
    return _infer_from_name(words).kind


def _find_code_parameter(schema: Any, name_kind: EffectKind, has_language: bool) -> str:
    """Return the name of a parameter that takes code to run. Empty: there is none.

    Args:
        has_language: the tool's name contains a programming language.
    """
    for name, schema_part in _properties(schema):
        normalized = "_".join(split_name(name))
        if not (
            normalized in _CODE_PARAMETERS or (has_language and normalized in _CODE)
        ) or schema_part.get("type") not in ("string", "array", None):
            continue
        if _find_values(schema_part):
            continue
        if name_kind is EffectKind.CHANGES and normalized in (
            "script",
            "command",
            "commands",
            "cmd",
        ):
            # `create_job(command)` stores it for later.
            continue
        return name
    return ""
