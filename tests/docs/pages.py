"""Pages of the documentation as blocks of code: language, file name, line, and whether they take long."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
READMES = [README, ROOT / "plugins" / "README.md"]
_FENCE = re.compile(
    r"^(?P<long><!-- long -->\n)?(?P<indent> *)```(?P<language>\w*|\{[^}\n]*\})"
    r'(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile(r"(?<!`)`(emberge [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    title: str
    long: bool
    code: str

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a block of the shell as words."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    def plain(self) -> dict[str, Any]:
        """The block as JSON takes it."""
        return {
            **asdict(self),
            "recipe": self.is_recipe,
            "script": self.language == "python" and not self.title and not self.long,
            "commands": self.commands if self.is_console and not self.long else [],
        }

    @property
    def is_console(self) -> bool:
        """Whether it has commands."""
        return self.language == "bash"

    @property
    def is_recipe(self) -> bool:
        """Whether `check` has a word on it: a recipe, or a config of another tool for merges."""
        other = self.title.endswith("datasets.yaml") or self.title.startswith(".github/")
        return self.language == "yaml" and not other


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; those of a README without a language are commands."""
    text = page.read_text("utf-8")
    bare = "bash" if page in READMES else ""
    return [
        Block(
            line=text.count("\n", 0, found.end("indent")) + 1,
            language=found["language"] or bare,
            title=found["title"] or "",
            long=bool(found["long"]) or page in READMES,
            code=found["code"],
        )
        for found in _FENCE.finditer(text)
    ]


def inline_commands(page: Path) -> Iterator[list[str]]:
    """The commands that a page has in its sentences, without what follows a `>`."""
    for found in _INLINE.finditer(page.read_text("utf-8")):
        yield shlex.split(found[1].partition(" > ")[0])


def name(page: Path) -> str:
    """The page's path, as a test's name."""
    return page.relative_to(ROOT).as_posix()
