"""Tokens that the files of a model name: found by id and by text, and ids changed to a cut vocabulary's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ID_KEY = re.compile(r"token_(id|ids|index)$|^(suppress|begin_suppress)_tokens$|^bad_words_ids$")
_TEXT_KEY = re.compile(r"_tokens?(_id|_decoder)?$")
_SIZE, _MULTIPLE = "vocab_size", "pad_vocab_size_multiple"
# Function from a token's id to its new one.
Change = Callable[[int], int | None]


def list_named_ids(config: Any) -> set[int]:
    """Return the token ids in a config: those of its special tokens, and of images and clips."""
    named: set[int] = set()
    renumber_ids(config, named.add)
    return named


def list_named_texts(config: Any) -> Iterator[str]:
    """Yield the texts of the tokens in a config, which it has as text or as the content of an object."""
    if isinstance(config, list):
        for value in config:
            yield from list_named_texts(value)
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if _TEXT_KEY.search(key):
            yield from _list_texts(value)
        yield from list_named_texts(value)


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the text of a token, or those of several in a list or by id or name."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and "content" in value:
        yield from _list_texts(value["content"])
    elif isinstance(value, list | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _list_texts(inner)


def renumber_ids(config: Any, change: Change, size: tuple[int, int] | None = None) -> Any:
    """Return a config with the new ids of its tokens, and null in place of an id that no token has.

    `change` maps an id to the new one, or to None. Lists lose ids without one, and a list of words the words
    that have such an id. `size` is the number of tokens before and after; the config's `vocab_size` changes
    with it, and is no longer rounded up.
    """
    if isinstance(config, list):
        return [renumber_ids(value, change, size) for value in config]
    if not isinstance(config, Mapping):
        return config
    changed: dict[str, Any] = {}
    for key, value in config.items():
        if _ID_KEY.search(key):
            changed[key] = _change_numbers(value, change)
        elif size is not None and key == _SIZE and value == size[0]:
            changed[key] = size[1]
        elif size is not None and key == _MULTIPLE and isinstance(value, int):
            changed[key] = 1
        else:
            changed[key] = renumber_ids(value, change, size)
    return changed


def _change_numbers(value: Any, change: Change) -> Any:
    if isinstance(value, list):
        changes = [(inner, _change_numbers(inner, change)) for inner in value]
        return [new for old, new in changes if new is not None and _has_all(old, new)]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 0 else change(value)
    return value


def _has_all(old: Any, new: Any) -> bool:
    """Return whether a word, if the value is one, still has all of its tokens."""
    return not isinstance(old, list) or len(new) == len(old)
