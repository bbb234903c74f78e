"""Pairs of matching texts from files of Python and of the project's dependencies."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import unicodedata
import zoneinfo
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from emberge.interpreter import locate_package
from emberge_data import parse_source, take_first_paragraph

Pair = tuple[str, str]
# Distributions that come with the project and state long or unusual licences.
LICENSED_PACKAGES = ("numpy", "pillow", "pyarrow", "scipy", "torch", "tqdm", "transformers")
_LICENCE = re.compile(r"(licen[sc]e|notice|copying)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.;:])\s+")
# Parts of sympy that are about mathematics rather than about programming it.
_MATHEMATICS_FOLDERS = ("combinatorics", "functions", "geometry", "ntheory", "physics", "stats")
_HEADLINE = re.compile(r"^[=~-]{3,}\s*$", re.MULTILINE)
_TITLE = re.compile(r"^\s*title\s*=\s*[{\"](.+?)[}\"],?\s*$", re.MULTILINE)
_COMMENT = re.compile(r"(?:^[ \t]*///.*\n)+(?P<code>(?:^(?![ \t]*//).+\n){1,6})", re.MULTILINE)

_LARGEST_FAMILIES = 8
_CODE_COLUMN, _ZONE_COLUMN = 0, 2  # columns of zone.tab
_NAME_COLUMN = 1  # column of iso3166.tab
_LANGUAGE_FILES = ("iso_639_3_to_language", "language_family")


def read_licences() -> Iterator[Pair]:
    """Yield the first sentence of each paragraph of the licences, and the remainder of the paragraph."""
    for distribution in LICENSED_PACKAGES:
        for path in _list_licence_files(distribution):
            for paragraph in re.split(
                r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace")
            ):
                first, *other_sentences = _SENTENCE.split(" ".join(paragraph.split()), maxsplit=1)
                if (
                    other_sentences
                    and len(first.split()) >= 6
                    and 12 <= len(other_sentences[0].split()) <= 150
                ):
                    yield first, other_sentences[0]


def _list_licence_files(distribution: str) -> list[Path]:
    try:
        distribution_files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    files = [
        file
        for file in distribution_files
        if ".dist-info" in str(file) and _LICENCE.search(file.name)
    ]
    return [path for file in sorted(files) if (path := Path(str(file.locate()))).is_file()]


def read_papers() -> Iterator[Pair]:
    """Yield the description of each task of mteb's catalogue, and the title of the paper that it cites."""
    folder = locate_package("mteb")
    for path in sorted((folder / "tasks").rglob("*.py")) if folder is not None else ():
        parsed = parse_source(path)
        for node in ast.walk(parsed[0]) if parsed is not None else ():
            if isinstance(node, ast.Call):
                texts = {k.arg: _read_constant(k.value) for k in node.keywords}
                title = _TITLE.search(texts.get("bibtex_citation", ""))
                description = " ".join(texts.get("description", "").split())
                if title is not None and len(description.split()) >= 6:
                    yield description, re.sub(r"[{}\\]", "", " ".join(title[1].split()))


def _read_constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def read_mathematics() -> Iterator[Pair]:
    """Yield the first and the next prose paragraph of each docstring in sympy."""
    folder = locate_package("sympy")
    places = [folder / part for part in _MATHEMATICS_FOLDERS] if folder is not None else []
    for path in sorted(path for source_folder in places for path in source_folder.rglob("*.py")):
        parsed = parse_source(path) if "tests" not in path.parts else None
        for node in ast.walk(parsed[0]) if parsed is not None else ():
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                yield from _split_docstring(ast.get_docstring(node) or "")


def _split_docstring(docstring: str) -> Iterator[Pair]:
    prose = _HEADLINE.split(docstring)
    body_paragraphs = (prose[0] if len(prose) == 1 else prose[1]).split("\n\n")
    first = take_first_paragraph(docstring)
    paragraphs = [
        " ".join(paragraph.split()) for paragraph in body_paragraphs if ">>>" not in paragraph
    ]
    paragraphs = [
        paragraph for paragraph in paragraphs if paragraph != first and len(paragraph.split()) >= 12
    ]
    if len(first.split()) >= 4 and paragraphs:
        yield first, paragraphs[0]


def read_cpp() -> Iterator[Pair]:
    """Yield the comment on each declaration in pyarrow's C++ headers, and the declaration."""
    folder = locate_package("pyarrow")
    for path in sorted((folder / "include" / "arrow").rglob("*.h")) if folder is not None else ():
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in _COMMENT.finditer(text):
            comment = match[0][: match.start("code") - match.start()]
            lines = [line.strip().removeprefix("///").strip() for line in comment.splitlines()]
            words = " ".join(lines).partition("\\param")[0].partition("\\return")[0]
            about = re.sub(r"\\\w+\s*", "", words).strip()
            code = " ".join(re.split(r"[;{]", match["code"])[0].split())
            if len(about.split()) >= 5 and len(code) >= 20:
                yield about, code


def read_places() -> Iterator[Pair]:
    """Yield (country, city) for each city that a time zone is named after."""
    folder = _find_zones()
    if folder is None:
        return
    named = _read_table(folder / "iso3166.tab")
    countries = {row[_CODE_COLUMN]: row[_NAME_COLUMN] for row in named}
    for row in _read_table(folder / "zone.tab"):
        city = row[_ZONE_COLUMN].replace("_", " ").rpartition("/")[2]
        country = countries.get(row[_CODE_COLUMN], "")
        if country and not {*country.lower().split()} & {*city.lower().split()}:
            yield country, city


def _find_zones() -> Path | None:
    """Return the folder of time zones of the package tzdata, otherwise the system's; None without one."""
    package = locate_package("tzdata")
    folders = [package / "zoneinfo"] if package is not None else []
    folders += [Path(path) for path in zoneinfo.TZPATH]
    return next((folder for folder in folders if (folder / "zone.tab").is_file()), None)


def _read_table(path: Path) -> Iterator[list[str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def read_things() -> Iterator[Pair]:
    """Yield (an emoji's name in the package rich, its Unicode name)."""
    folder = locate_package("rich")
    parsed = parse_source(folder / "_emoji_codes.py") if folder is not None else None
    for node in parsed[0].body if parsed is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for code, emoji in ast.literal_eval(node.value).items():
                character = emoji.rstrip("\ufe0f")
                name = unicodedata.name(character, "") if len(character) == 1 else ""
                called = " ".join(code.replace("_", " ").split())
                if name and set(called.split()) != set(name.lower().split()):
                    yield called, name.lower()


def read_languages() -> Iterator[Pair]:
    """Yield (language, family) for the families with the most languages."""
    folder = locate_package("mteb")
    if folder is None:
        return
    files = [folder / "languages" / f"{name}.json" for name in _LANGUAGE_FILES]
    if not all(file.is_file() for file in files):
        return
    names, families = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    family_by_language = {
        names[code]: entry["level0"] for code, entry in families.items() if code in names
    }
    counts = Counter(family_by_language.values())
    most = [family for family, _ in counts.most_common(_LARGEST_FAMILIES)]
    yield from ((name, family) for name, family in family_by_language.items() if family in most)
