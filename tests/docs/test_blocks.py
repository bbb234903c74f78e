"""Every block of the documentation works: recipes are checked, commands and Python are run."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emberge import load_plugins
from emberge.cli.arguments import parse
from emberge.errors import RecipeError

from tests.docs.pages import DOCS, PAGES, README, READMES, blocks, inline_commands, name
from tests.docs.workplace import write_data, write_folder, write_models
from tests.support.commands import environment
from tests.support.media_models import media_model
from tests.support.places import ROOT

ALL = [*PAGES, *READMES]
WALKED = [*PAGES, README]  # the plugins' README has tests of its own
Done = tuple[int, str, int, str]


@pytest.fixture(scope="module")
def shared(bert: Path, berts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages name and do not make: models, data and media."""
    root = tmp_path_factory.mktemp("shared")
    omni = media_model(tmp_path_factory.mktemp("omni") / "omni", "qwen3_omni_moe_thinker")
    write_models(root, bert, berts, omni)
    write_data(root)
    return root


@pytest.fixture(scope="module")
def walked(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Done]]:
    """Each page's blocks as a reader does them, all in one process: most of the time goes to imports."""
    root = tmp_path_factory.mktemp("pages")
    folders = {name(page): write_folder(name(page), shared, root / name(page)) for page in WALKED}
    todo = [
        (str(folders[name(page)]), [block.plain() for block in blocks(page)]) for page in WALKED
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.walk"],
        input=json.dumps(todo),
        env=environment(PYTHONPATH=str(ROOT), HF_HUB_OFFLINE="0", HF_ENDPOINT="http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[Done]] = {page: [] for page in folders}
    for folder, *one in json.loads(done.stdout):
        found[Path(folder).relative_to(root).as_posix()].append(tuple(one))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", WALKED, ids=name)
def test_what_a_page_shows_works(page: Path, walked: dict[str, list[Done]]) -> None:
    wrong = [
        f"{name(page)}:{line}: {what}: {code}\n{said}"
        for line, what, code, said in walked[name(page)]
        if code
    ]
    assert not wrong, "\n".join(wrong)


def test_every_command_exists() -> None:
    wrong = []
    for page in ALL:
        for block in blocks(page):
            commands = block.commands if block.is_console else []
            found = [refused(words) for words in commands]
            wrong += [f"{name(page)}:{block.line}: {text}" for text in found if text]
        found = [refused_verb(words[1:], False) for words in inline_commands(page)]
        wrong += [f"{name(page)}: {text}" for text in found if text]
    assert wrong == []


def test_no_block_of_a_page_is_passed_over() -> None:
    for page in ALL:
        text, found = page.read_text("utf-8"), blocks(page)
        for language in ("yaml", "bash", "python", "json") if page not in READMES else ():
            count = sum(block.language == language for block in found)
            assert count == text.count(f"```{language}"), f"{name(page)}: {language}"
        assert text.count("```") == 2 * len(found), name(page)


@functools.cache
def verbs() -> Any:
    return load_plugins().verbs


def refused(words: list[str]) -> str:
    """What is wrong with a command of a console block."""
    extras = (ROOT / "pyproject.toml").read_text("utf-8")
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        known = re.search(rf"^{words[1]}\b[^=\n]*:", makefile, re.MULTILINE)
        return "" if known else f"no target {words[1]}"
    if words[0] == "pip":
        extra = re.search(r"\[(\w+)\]$", words[-1])
        known = extra is None or re.search(rf"^{extra[1]} = \[", extras, re.MULTILINE)
        return "" if known else f"no extra {words[-1]}"
    if words[0] in ("torchrun", "accelerate"):
        return refused_verb(words[words.index("emberge") + 1 :])
    return refused_verb(words[1:]) if words[0] == "emberge" else f"{words[0]} is not known here"


def refused_verb(words: list[str], whole: bool = True) -> str:
    """What the command line says against these words; in a sentence a required option may be left out."""
    try:
        parse(words, verbs())
    except RecipeError as error:
        if whole or "required" not in str(error):
            return str(error)
    except SystemExit:  # --help, --version
        pass
    return ""


def test_a_command_that_is_misspelt_is_found() -> None:
    assert "did you mean 'check'" in refused(["emberge", "chek", "recipe.yaml"])
    assert "did you mean '--out'" in refused(["emberge", "run", "r.yaml", "--outt", "o"])
    assert refused(["make", "nothing"])
    assert refused(["pip", "install", ".[nothing]"])


def test_a_newcomer_needs_at_most_ten_commands_to_a_model_of_three_fine_tunes() -> None:
    first, second = DOCS / "index.md", DOCS / "tutorials" / "merge.md"
    install = [c for b in blocks(first) if b.is_console for c in b.commands if c[0] == "pip"]
    path: list[list[str]] = []
    for command in (c for b in blocks(second) if b.is_console for c in b.commands):
        path.append(command)
        if sum("members.draw" in word for word in command) == 3:
            break
    assert len(install) + len(path) <= 10
