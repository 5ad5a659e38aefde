"""Tokenization of texts and names, and removal of the filler around a query.

Pure functions. They accept any text, including other scripts, control characters and megabytes.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from interlock.aql.search.stems import stem

MAX_CHARACTERS: Final = 2_000
"""Maximum number of characters that are read. The important part comes first."""
MAX_WORDS: Final = 120

_WORD: Final = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DIGITS: Final = re.compile(r"(?<=[a-z])(?=[0-9]{2,})")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s|\n\s*\n|\n")

_STOP: Final = """
a an the this that these those some any each every all both no not nor of in on at to for from by
with without within into onto over under about above below between through during before after
since until till per via as than then so if else or and but because while when where which who whom
whose what why how there here it its it's he him his she her hers they them their theirs we us our
ours you your yours i me my mine myself yourself itself themselves be is are was were been being am
do does did done doing have has had having will would shall should can could may might must need
needs needed want wants wanted like likes please kindly just only also too very really quite rather
such other others another same own up out off down again further once ever never always still yet
already now hey hi hello okay ok well oh let lets let's got gotta gonna wanna i'm i'd i've i'll
we're we've we'd we'll you're you've you'd you'll it'd it'll that's there's here's what's who's
how's where's don't doesn't didn't can't couldn't won't wouldn't isn't aren't wasn't weren't
something anything everything nothing someone somebody anyone anybody everyone everybody thing
things stuff bit lot lots kind sort way ways one ones bunch couple etc eg ie able going
specified specific given provided provide provides providing using used use uses based following
certain particular respective relevant appropriate corresponding associated related required
optional optionally default currently whether e.g i.e via instead especially useful
tool tools operation operations function allow allows allowing allowed enables enable
"""
STOP: Final = frozenset(_STOP.split())
"""Words without significance in queries and descriptions."""

_WEAK: Final = """
today tomorrow yesterday tonight week month year day hour minute morning afternoon evening monday
tuesday wednesday thursday friday saturday sunday last next recent recently latest new old current
good best great right quick quickly fast soon big small long short many much more most less few
first second third two three four five ten single multiple several various full whole entire
complete make get go take put give set keep know think see say tell look come help try work
show find name id ids value values object string number true false type result results
available existing exist exists support supports supported include includes including included
return returns returned returning detail details detailed user users item items data information
option options method within important example default
"""
WEAK: Final = frozenset(stem(word) for word in _WEAK.split())
"""Words with little significance, because many queries and descriptions contain them."""

_FILLER: Final = re.compile(
    r"\b(?:(?:can|could|would|will) (?:you|we|i|somebody|someone)(?: please)?(?: help me)?(?: to)?"
    r"|(?:i|we)(?:'d| would) (?:like|love)(?: you)? to"
    r"|(?:i|we)(?: really| just| also)? (?:need|want|have|wish)(?: you)? to"
    r"|i(?:'m| am) (?:trying|looking|going|about|hoping|planning) to"
    r"|help me(?: to)?|please|is there (?:a|any) way to|how (?:do|can|would|could) (?:i|we|you)"
    r"|is it possible to|(?:do you|would you) mind|go ahead and|make sure(?: that| to)?"
    r"|what(?:'s| is) the best way to|i was wondering (?:if|whether)|let me|let's|let us"
    r"|in order to|so that|as well as|such as|if possible|thank you|thanks)\b"
)
"""Phrases around the actual task of a query."""

_LITERAL: Final = re.compile(
    r"""(?P<url>\b[a-z][a-z0-9+.-]{1,20}://\S+)
      | (?P<quoted>"[^"\n]{1,400}"|“[^”\n]{1,400}”|`[^`\n]{1,400}`|(?<!\w)'[^'\n]{2,400}'(?!\w))
      | (?P<path>(?<![\w.])(?:~|\.{1,2})?/[\w.@~+-][\w./@~+-]*|\b[a-z]:\\\S+)
      | (?P<other>\b[\w.+-]{1,64}@[\w-]+\.[\w.-]+|(?<!\w)\#[a-z][\w-]*)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Objects of a task: URLs, quoted text, paths, mail addresses and channels."""
_EXTENSION: Final = re.compile(r"\.([a-z][a-z0-9]{1,4})\Z", re.IGNORECASE)


def normalize(text: str) -> str:
    """Normalize text: no accents, plain quotes, limited length."""
    text = text[:MAX_CHARACTERS]
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text.replace("’", "'"))
        text = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return text


def split_names(text: str) -> str:
    """Split names such as `createIssue` and `list_open_prs2` into words."""
    return _CAMEL.sub(" ", text.replace("_", " "))


def split_words(text: str) -> list[str]:
    """Return the words of a text in order and lower case, including stop words."""
    lowered = split_names(normalize(text)).lower()
    words = []
    for word in _WORD.findall(lowered):
        if word.endswith("'s"):
            word = word[:-2]
        words.append(word)
        if len(words) >= MAX_WORDS:
            break
    return words


def remove_literals(text: str) -> str:
    """Return a query without its literals. A URL becomes the word `url`, a file its extension.

    A query that consists of literals only is returned unchanged.
    """
    text = text[:MAX_CHARACTERS]
    remaining = _LITERAL.sub(_literal_replacement, text)
    return remaining if _WORD.search(remaining) else text


def _literal_replacement(match: re.Match[str]) -> str:
    if match["url"]:
        return " url "
    value = match["quoted"][1:-1] if match["quoted"] else match["path"] or ""
    extension = _EXTENSION.search(value.rstrip(".,;:!?"))
    return f" {extension[1]} " if extension else " "


def query_words(text: str) -> list[str]:
    """Return the words of a query, without literals and filler."""
    text = remove_literals(text)
    return split_words(_FILLER.sub(" ", normalize(text).lower()) if text.isascii() else text)


def first_sentence(text: str) -> tuple[str, str]:
    """Return the first sentence of a description, and the rest."""
    text = text[:MAX_CHARACTERS].strip()
    parts = _SENTENCE.split(text, maxsplit=1)
    return (parts[0], parts[1]) if len(parts) == 2 else (text, "")


def trigrams(word: str) -> set[str]:
    """Return the trigrams of a word, including marks for its beginning and end."""
    marked_word = f"^{word}$"
    return {marked_word[index : index + 3] for index in range(len(marked_word) - 2)}
