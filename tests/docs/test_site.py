"""The site builds strictly, its pages are all listed, and none loads anything from elsewhere."""

from __future__ import annotations

import dataclasses
import html
import inspect
import re
from pathlib import Path

import emberge
import pytest
from emberge import load_plugins
from emberge.cli.verbs import VERBS
from emberge.plugins import KINDS

from tests.docs.pages import PAGES, READMES
from tests.docs.pages import name as page_name
from tests.support.commands import environment, python
from tests.support.places import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site") / "site"
    python(
        *("-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)),
        env=environment(NO_MKDOCS_2_WARNING="1"),
        cwd=ROOT,
    )
    return folder


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file()


@pytest.mark.slow
def test_the_reference_has_every_component_option_and_verb(site: Path) -> None:
    text = "".join(file.read_text("utf-8") for file in (site / "reference").glob("*.html"))
    found = set(re.findall(r'<h2 id="([\w:.-]+)"', text))
    plugins = load_plugins(block=())
    components = {c.name for c in plugins.components}
    assert components - found == set()
    assert {*VERBS, *plugins.verbs} - found == set()
    assert len(list((site / "reference").glob("*.html"))) >= len(KINDS) + 4


@pytest.mark.slow
def test_python_names_are_all_there_with_signatures_fields_and_docstrings(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text("utf-8")
    sections = dict(re.findall(r'<h3 id="(\w+)".*?</h3>(.*?)(?=<h[23] |$)', page, re.DOTALL))
    assert set(emberge.__all__) - sections.keys() == set()
    for name in emberge.__all__:
        thing = getattr(emberge, name)
        text = html.unescape(re.sub(r"<[^>]+>", "", sections[name]))
        words = " ".join(re.sub(r"[`\\]", "", text).split())
        if inspect.isclass(thing) or inspect.isfunction(thing):
            first = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
            assert re.sub(r"[`\\]", "", first) in words, name
        if inspect.isfunction(thing):
            assert all(f"{option}" in words for option in inspect.signature(thing).parameters), name
        if dataclasses.is_dataclass(thing):
            own = vars(thing).get("__annotations__", {})
            assert [field for field in own if field[0] != "_" and field not in words] == [], name
    for stub in (ROOT / "core" / "emberge").rglob("__init__.pyi"):
        name = "".join(stub.relative_to(ROOT / "core").parts[:-1])
        assert name == "embergecontracts" or f'id="{name}"' in page, stub


@pytest.mark.parametrize("page", [*PAGES, *READMES, ROOT / "CONTRIBUTING.md"], ids=page_name)
def test_links_of_a_clone_lead_to_its_files(page: Path) -> None:
    text = page.read_text("utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [file for file in files if file and not (page.parent / file).exists()] == []
    assert "--8<--" not in text


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=[\"']?https?://[^>]*>")
    allowed = re.compile(r'rel="?(?:canonical|me)\b')
    found = [
        (file.name, tag)
        for file in site.rglob("*.html")
        for tag in loads.findall(file.read_text("utf-8"))
        if not allowed.search(tag)
    ]
    assert found == []


def test_the_search_of_a_folder_needs_no_server(site: Path) -> None:
    """The browser may then neither fetch the index nor start a worker."""
    index = (site / "search" / "search_index.js").read_text("utf-8")
    assert index.startswith("var __index = {")
    assert "onnxruntime" in index
    scripts = re.findall(r'<script src="?([^">]+)', (site / "howto" / "export.html").read_text())
    assert "../assets/iframe-worker.js" in scripts
    assert (site / "assets" / "iframe-worker.js").is_file()


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0]
    config = re.sub(r"hooks:\n- .*\n", "", config).replace("docs_dir: docs", "docs_dir: pages")
    (tmp_path / "mkdocs.yml").write_text(config.replace("out/site", "site"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# One\n\n[gone](two.md) and [here](#nowhere)\n")
    done = python(
        *("-m", "mkdocs", "build"),
        env=environment(NO_MKDOCS_2_WARNING="1"),
        cwd=tmp_path,
        fails=True,
    )
    assert done.returncode != 0
    assert "two.md" in done.stderr
    assert "nowhere" in done.stderr
