"""Words cut down to what their forms have in common, lightly: plurals, tenses, a few endings.

Pure, and kept by word: a catalog says the same words over and over.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_FORMS: Final = """
be: is are was were been being am
have: has had having
do: does did done doing
go: goes went gone going
get: got gotten gets getting
send: sent sends sending
buy: bought
write: wrote written writing writes
pay: paid
find: found
make: made making
run: ran running
person: people persons
child: children
keep: kept
tell: told
say: said
speak: spoke spoken
leave: left
take: took taken
give: gave given
see: saw seen
show: shown showed
break: broke broken
choose: chose chosen
build: built
hold: held
meet: met
throw: threw thrown
draw: drew drawn
drive: drove driven
fly: flew flown
forget: forgot forgotten
hide: hid hidden
lose: lost
sell: sold
spend: spent
steal: stole stolen
think: thought
wake: woke
win: won
know: knew known
begin: began begun
bring: brought
catch: caught
come: came
feel: felt
grow: grew grown
hear: heard
understand: understood
withdraw: withdrew withdrawn
undo: undid undone
rewrite: rewrote rewritten
freeze: froze frozen
speed: sped
index: indices indexes indexing
analysis: analyses analyse analyze analyzed analysed analyzing analysing analyzer analytics analytic
life: lives
half: halves
shelf: shelves
leaf: leaves
news: news
status: statuses
alias: aliases
address: addresses
access: accesses
process: processes processing processed processor
analytics: analytics
metadata: metadata
schema: schemas schemata
criterion: criteria
datum: data
medium: media
favourite: favorite favorites favourites
colour: color colors colours
organisation: organization organizations organisations org orgs
organise: organize organizing
cancel: cancelled canceled cancelling canceling cancellation
subscribe: subscription subscriptions subscriber subscribers
describe: description descriptions
transcribe: transcription transcriptions transcript transcripts
delete: deletion deletions deleting deletes deleted
remove: removal removals
approve: approval approvals
retrieve: retrieval
sum: summed
summary: summaries summarize summarise summarization summarizing summarising summarizes
classify: classification
notify: notification notifications notifying
verify: verification
modify: modification modifications
identify: identification identifier identifiers
apply: application_of applying
reply: replies replied replying
specify: specification specifications spec specs
configure: configuration configurations config configs cfg
authenticate: authentication auth authenticated
authorise: authorize authorization authorisation
invite: invitation invitations
convert: conversion conversions converter
extract: extraction
compare: comparison comparisons
compress: compression
decompress: decompression
execute: execution executions exec
deploy: deployment deployments
environment: env envs environments
document: doc docs documents documentation documented
repository: repo repos repositories
database: db dbs databases
directory: dir dirs directories
parameter: param params parameters
argument: arg args arguments
message: msg msgs messages
number: num nums numbers
application: app apps applications
information: info infos
administrator: admin admins administrators
development: dev
production: prod
language: lang langs
temporary: temp tmp
maximum: max
minimum: min
average: avg averages
reference: ref refs
image: img imgs
picture: pic pics
photograph: photo photos photography
video: vid videos
advertisement: ad ads advert adverts
synchronise: sync synchronize synchronization synced syncing
authentication: oauth login_of
statistic: stats stat statistics statistical
navigate: navigation nav
generate: generation generator
calculate: calculation calculator calc
translate: translation translations translator
recommend: recommendation recommendations
suggest: suggestion suggestions
predict: prediction predictions
visual: visualize visualise visualization visualisation visualizing
explanation: explain explains explained explaining
"""


def _irregular() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in _FORMS.strip().splitlines():
        base, _, forms = line.partition(":")
        for form in forms.split():
            found[form] = base
    return found


_IRREGULAR: Final = _irregular()
_VOWELS: Final = frozenset("aeiouy")
_KEPT_DOUBLE: Final = frozenset("lsz")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """What the forms of a lower-case word have in common. It need not be a word."""
    word = _IRREGULAR.get(word, word)
    if len(word) <= 3 or not word.isascii() or not word.isalpha():
        return word
    return _ending(_tense(_plural(word)))


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _tense(word: str) -> str:
    for ending in ("ing", "ed"):
        cut = word[: -len(ending)]
        if not word.endswith(ending) or len(cut) < 3 or not _has_vowel(cut):
            continue
        if cut[-1] == cut[-2] and cut[-1] not in _KEPT_DOUBLE and cut[-1] not in _VOWELS:
            return cut[:-1]
        return cut
    return word


def _ending(word: str) -> str:
    for ending, instead in (("ational", "at"), ("ation", "at"), ("ition", "it"), ("tion", "t")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + instead
    if word.endswith("ily") and len(word) > 5:
        return word[:-3] + "i"
    if word.endswith("ly") and len(word) > 5:
        word = word[:-2]
    if word.endswith("y") and len(word) > 3 and word[-2] not in _VOWELS:
        return word[:-1] + "i"
    if word.endswith("e") and len(word) > 3:
        return word[:-1]
    return word


def _has_vowel(text: str) -> bool:
    return any(letter in _VOWELS for letter in text)
