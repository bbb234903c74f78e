"""Names that belong together: countries and places, emoji and characters, languages and their families."""

from __future__ import annotations

import ast
import json
import unicodedata
import zoneinfo
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from emberge_demo.corpus import locate, parsed

_FAMILIES = 8
_CODE, _ZONE = 0, 2  # columns of zone.tab
_NAME = 1  # column of iso3166.tab


def places() -> Iterator[tuple[str, str]]:
    """Yield a country, and each place there that a time zone is named after."""
    folder = _zones()
    if folder is None:
        return
    countries = {row[_CODE]: row[_NAME] for row in _table(folder / "iso3166.tab")}
    for row in _table(folder / "zone.tab"):
        place = row[_ZONE].replace("_", " ").rpartition("/")[2]
        country = countries.get(row[_CODE], "")
        if country and not {*country.lower().split()} & {*place.lower().split()}:
            yield country, place


def _zones() -> Path | None:
    """Return the folder of time zones: of the package tzdata, else the system's."""
    package = locate("tzdata")
    folders = [package / "zoneinfo"] if package is not None else []
    folders += [Path(place) for place in zoneinfo.TZPATH]
    return next((one for one in folders if (one / "zone.tab").is_file()), None)


def _table(path: Path) -> Iterator[list[str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def things() -> Iterator[tuple[str, str]]:
    """Yield the name that rich has for an emoji, and another that Unicode gives the character."""
    folder = locate("rich")
    found = parsed(folder / "_emoji_codes.py") if folder is not None else None
    for node in found[0].body if found is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for code, emoji in ast.literal_eval(node.value).items():
                character = emoji.rstrip("\ufe0f")
                name = unicodedata.name(character, "") if len(character) == 1 else ""
                called = " ".join(code.replace("_", " ").split())
                if name and set(called.split()) != set(name.lower().split()):
                    yield called, name.lower()


def languages() -> Iterator[tuple[str, str]]:
    """Yield the name of a language, and its family, of the families with most languages."""
    folder = locate("mteb")
    files = [folder / "languages" / f"{name}.json" for name in _FILES] if folder is not None else []
    if not files or not all(file.is_file() for file in files):
        return
    names, families = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    known = {names[code]: one["level0"] for code, one in families.items() if code in names}
    most = [family for family, _ in Counter(known.values()).most_common(_FAMILIES)]
    yield from ((name, family) for name, family in known.items() if family in most)


_FILES = ("iso_639_3_to_language", "language_family")
