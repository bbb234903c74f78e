"""Scripts and languages of short texts, as far as letters and small words show them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

_LOOKED_AT = 2000  # characters of a text
_SHARE = 0.1
# Small words by which languages of the Latin script differ from one another.
_SMALL_WORDS = {
    "English": "the of and to is that with are from this which how what does do can it for",
    "German": "der die das und ist nicht mit den von ein eine wie wird auf für sind werden dem",
    "French": "le les des est et une pour dans que qui sur avec comment du sont quelle quels aux",
    "Spanish": "el los las es y una para que con cómo por del qué se como cuál son su",
    "Italian": "il gli della di è che per con una come sono nel quali quale dei alla delle cosa",
    "Portuguese": "o os as é uma para que com como do da não em são qual dos pelo quais",
    "Dutch": "het een van en is niet met voor op hoe wordt zijn dat welke wat aan bij naar",
    "Swedish": "och att det är som en på för med av inte hur den till ett vad kan om",
    "Polish": "jest nie na się do jak w z że to dla przez od czy co są jakie oraz",
}
_LANGUAGES_BY_WORD = {
    word: [language for language, words in _SMALL_WORDS.items() if word in words.split()]
    for words in _SMALL_WORDS.values()
    for word in words.split()
}
_CJK = frozenset(("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"))


@lru_cache(maxsize=4096)
def _find_script(letter: str) -> str:
    script = unicodedata.name(letter, "UNKNOWN").split()[0].partition("-")[0]
    return "CJK" if script in _CJK else script


def _list_scripts(text: str) -> set[str]:
    """Return the scripts that at least a tenth of a text's letters are of."""
    counts = Counter(_find_script(letter) for letter in text[:_LOOKED_AT] if letter.isalpha())
    return {script for script, count in counts.items() if count >= _SHARE * counts.total()}


def _guess_language(text: str, hits: int) -> str:
    """Return the language that small words show; "" with fewer than `hits` of them, or if two are near."""
    counts: Counter[str] = Counter()
    for word in re.findall(r"[^\W\d_]+", text[:_LOOKED_AT].lower()):
        counts.update(_LANGUAGES_BY_WORD.get(word, ()))
    ranked = [*counts.most_common(2), ("", 0), ("", 0)]
    (language, first), (_, second) = ranked[:2]
    return language if first >= hits and first >= 1.5 * second else ""


def is_other_language(query: str, passage: str) -> bool:
    """Return whether a query is surely of another script or language than its passage."""
    query_scripts, passage_scripts = _list_scripts(query), _list_scripts(passage)
    if query_scripts and passage_scripts and not query_scripts & passage_scripts:
        return True
    language, expected = _guess_language(query, 2), _guess_language(passage, 4)
    return bool(language and expected) and language != expected
