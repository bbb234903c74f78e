"""Publishing on a hub on this machine: what is uploaded, asked and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from emberge.cli.main import main

from tests.support.loopback_hub import Hub
from tests.support.publishing import TOKEN, Merged

# Of the hub's client itself, about how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Capture = pytest.CaptureFixture[str]
FREE = "license: apache-2.0\nbase_model: acme/small\ndatasets: [acme/pairs]"


def publish(*more: str, name: str = "me/soup") -> int:
    return main(["publish", "soup", name, *more])


def there(hub: Hub, name: str = "me/soup") -> Path:
    return hub.root / name / "main"


def front(card: Path) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", card.read_text(), re.DOTALL)
    assert found is not None
    matter: dict[str, Any] = yaml.safe_load(found[1])
    return matter


def shown_files(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if line.startswith("  ")}


def test_the_listed_files_are_uploaded_and_a_second_time_nothing_is_sent(
    hub: Hub, merged: Merged, tmp_path: Path, capsys: Capture
) -> None:
    folder = merged(FREE, "license: mit")
    assert publish("--yes") == 0
    shown = shown_files(capsys.readouterr().out)
    files = {p.relative_to(there(hub)).as_posix() for p in there(hub).rglob("*") if p.is_file()}
    assert files - {".gitattributes"} == shown
    assert {"model.safetensors", "modules.json", "README.md", "artifact.json"} <= files
    for name in files - {".gitattributes", "README.md", "artifact.json"}:
        assert (there(hub) / name).read_bytes() == (folder / name).read_bytes()
    for name in files - {"model.safetensors"}:
        text = (there(hub) / name).read_text()
        assert TOKEN not in text
        assert str(tmp_path) not in text
        assert str(folder.parent) not in text
    commits = list(hub.commits["me/soup"])
    assert publish() == 0  # nothing is asked where nothing is done
    assert "nothing to upload" in capsys.readouterr().out
    assert hub.commits["me/soup"] == commits


def test_a_dry_run_shows_files_card_and_licence_without_a_log_in_or_a_network(
    merged: Merged, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    folder = merged("license: mit", "license: mit")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()

    def refuse(*_: object) -> None:
        raise AssertionError("a dry run has no network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(["publish", "--dry-run", "soup"]) == 0
    shown = capsys.readouterr().out
    files, rest = shown.split("\n\n", 1)
    card, end = rest.rsplit("\n\n", 1)
    assert re.search(r"^  model\.safetensors +[\d.]+ [kM]?B$", files, re.MULTILINE)
    assert files.endswith("\nlicence mit")
    assert "  | legal | 0.5 | – | mit |\n" in card
    assert 'SentenceTransformer("your-name/soup")' in card
    assert "nothing was uploaded" in end
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_missing_licence_is_one_warning(hub: Hub, merged: Merged, capsys: Capture) -> None:
    merged("license: mit", "license: apache-2.0")
    capsys.readouterr()
    assert publish("--yes") == 0
    shown = capsys.readouterr().out
    (note,) = re.findall(r"^note: (.*)$", shown, re.MULTILINE)
    assert "--licence ID" in note
    assert "/me/soup (will be created, public)\n" in shown
    assert "\nno licence\n" in shown
    assert "license" not in front(there(hub) / "README.md")


def test_an_authors_card_is_published_unchanged(hub: Hub, merged: Merged) -> None:
    folder = merged("license: mit", "license: mit")
    mine = "---\nlanguage: no\nlicense:\n- mit\n- isc\ntags: [mine]\n---\n\n# Mine\n"
    (folder / "README.md").write_text(mine)
    assert publish("--yes") == 0
    assert (there(hub) / "README.md").read_text() == mine
    assert publish("--yes", "--replace", "--licence", "isc") == 0
    expected = "---\nlanguage: no\ntags: [mine]\nlicense: isc\n---\n\n# Mine\n"
    assert (there(hub) / "README.md").read_text() == expected


def test_a_model_without_a_card_gets_one(hub: Hub, merged: Merged) -> None:
    folder = merged("license: mit", "license: mit")
    (folder / "README.md").unlink()
    assert publish("--yes", "--licence", "mit") == 0
    text = (there(hub) / "README.md").read_text()
    assert text.startswith("---\nlicense: mit\n---\n")
    assert "# soup\n" in text


def test_without_a_terminal_nothing_is_uploaded(hub: Hub, merged: Merged, capsys: Capture) -> None:
    merged(FREE, "license: mit")
    assert publish() == 2
    said = capsys.readouterr()
    assert "model.safetensors" in said.out
    assert "--yes" in said.err
    assert not there(hub).exists()


@pytest.mark.parametrize(("answer", "sent"), [(" Y ", True), ("", False), (None, False)])
def test_at_a_terminal_the_user_is_asked(
    hub: Hub, merged: Merged, monkeypatch: pytest.MonkeyPatch, answer: str | None, sent: bool
) -> None:
    def reply(prompt: str) -> str:
        assert prompt == "publish me/soup? [y/N] "
        if answer is None:
            raise EOFError
        return answer

    merged(FREE, "license: mit")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)
    assert publish("--private") == 0
    assert there(hub).exists() == sent
    assert hub.private == (["me/soup"] if sent else [])


def test_other_content_is_replaced_only_with_the_option(
    hub: Hub, merged: Merged, capsys: Capture
) -> None:
    folder = merged(FREE, "license: mit")
    assert publish("--yes") == 0
    (there(hub) / "config.json").write_text("{}")
    (there(hub) / "left.txt").write_text("of before")
    capsys.readouterr()
    assert publish("--yes") == 2
    said = capsys.readouterr()
    assert "deleted from the repository: left.txt" in said.out
    assert "config.json" in said.err
    assert "--replace" in said.err
    (there(hub) / "left.txt").unlink()
    assert publish("--yes") == 2, "another content of one file"
    (there(hub) / "left.txt").write_text("of before")
    assert publish("--yes", "--replace") == 0
    assert (there(hub) / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert not (there(hub) / "left.txt").exists()
    assert (there(hub) / ".gitattributes").exists()


def test_a_folder_without_a_record_or_a_model_or_a_name_is_refused(
    hub: Hub, merged: Merged, capsys: Capture
) -> None:
    folder = merged("license: mit", "license: mit")
    capsys.readouterr()
    assert main(["publish", "legal", "me/soup", "--yes"]) == 2
    assert "artifact.json" in capsys.readouterr().err
    (folder.parent / "empty").mkdir()
    assert main(["publish", "empty", "me/soup", "--yes"]) == 2
    assert "no model" in capsys.readouterr().err
    for name in ("soup", "a/b/c", "../soup"):
        assert publish("--yes", name=name) == 2
        assert "owner/name" in capsys.readouterr().err
    assert main(["publish", "soup"]) == 2
    assert re.search(r"soup: .*OWNER/NAME.*--dry-run", capsys.readouterr().err)


# ── a hub that refuses ──────────────────────────────────────────────────────────────────────────────


def refused(hub: Hub, capsys: Capture, *more: str, name: str = "me/soup") -> str:
    """The error of a publication that the hub refuses; no word of the user's token is in any output."""
    capsys.readouterr()
    assert publish("--yes", *more, name=name) == 1
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    return said.err


def test_files_uploaded_before_a_stop_are_not_sent_again(
    hub: Hub, merged: Merged, capsys: Capture
) -> None:
    merged("license: mit", "license: mit")
    hub.answers["/commit/"] = [403]
    assert "any file uploaded is kept" in refused(hub, capsys)
    sent = sum(hub.received.values())
    assert sent > 0
    assert not (there(hub) / "model.safetensors").exists()  # all or nothing
    assert publish("--yes") == 0
    assert sum(hub.received.values()) == sent


def test_a_refusal_of_the_hub_is_shown(hub: Hub, merged: Merged, capsys: Capture) -> None:
    merged("license: mit", "license: mit")
    hub.token = "another"
    assert re.search("401.*; nothing was uploaded$", refused(hub, capsys).strip())
    hub.token = TOKEN
    assert "others/soup: the hub refused or failed (403" in refused(hub, capsys, name="others/soup")
    hub.answers["/api/repos/create"] = [404]
    assert "404" in refused(hub, capsys)
    hub.answers["/commit/"] = [412]
    assert "412" in refused(hub, capsys)


# ── the step ────────────────────────────────────────────────────────────────────────────────────────

RECIPE = """
seed: 0
steps:
  soup:
    merge: {models: [./legal, ./faq], strategy: linear}
  public:
    publish: {model: $soup, name: me/soup, licence: isc}
"""


def test_a_recipe_publishes_only_with_the_flag(
    hub: Hub, merged: Merged, tmp_path: Path, capsys: Capture
) -> None:
    merged(FREE, "license: mit")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    capsys.readouterr()
    assert main(["check", "recipe.yaml", "--offline"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert re.search("uploads to me/soup.*--allow-upload", first)
    run = ["run", "recipe.yaml", "--out", "out", "--quiet"]
    assert main(run) == 2
    assert re.search(r"recipe\.yaml:6.*--allow-upload", capsys.readouterr().err)
    assert not Path("out").exists()
    assert not hub.asked
    assert main([*run, "--allow-upload"]) == 0
    assert there(hub).exists()
    result = tmp_path / "out" / "public"
    record = json.loads((result / "artifact.json").read_text())["details"]
    assert record["licence"] == "isc"
    assert record["commit"] == hub.commits["me/soup"][-1]
    text = (result / "published.md").read_text()
    rows = dict(re.findall(r"^  (\S+) +([\d.]+ (?:bytes|[kM]B))$", text, re.MULTILINE))
    assert {"README.md", "artifact.json", "config.json", "model.safetensors"} <= {*rows}


GATED = """
seed: 0
steps:
  soup:
    merge: {models: [./legal, ./faq], strategy: linear}
  scores:
    evaluate:
      models: [./legal, $soup]
      evaluators: {mteb: {data: tests.csv}}
      require: [{model: $soup, not_worse_than: ./legal, margin: 100}]
  public:
    publish: {model: $soup, name: me/soup, after: $scores}
"""
CLAIM = "not met: soup must be better than legal by more than 100 points on all: "


def test_a_model_with_an_unmet_requirement_is_not_uploaded(
    hub: Hub, merged: Merged, tmp_path: Path, capsys: Capture
) -> None:
    merged(FREE, "license: mit")
    rows = [f"find the number {n},this is number {n}\n" for n in range(6)]
    (tmp_path / "tests.csv").write_text("question,answer\n" + "".join(rows))
    run = ["run", "recipe.yaml", "--out", "out", "--quiet", "--allow-upload"]
    shut = GATED.replace("not_worse_than", "better_than")
    (tmp_path / "recipe.yaml").write_text(shut)
    capsys.readouterr()
    for _ in range(2):  # a second run skips all steps and ends alike
        assert main(run) == 3
        assert f"error: step 'scores': {CLAIM}" in capsys.readouterr().err
        assert not there(hub).exists()
        assert not hub.asked
    result = tmp_path / "out" / "public"
    assert (result / "published.md").read_text().startswith(f"- not published: scores: {CLAIM}")

    assert main(["status", "out"]) == 0
    assert "  nothing was published\n" in capsys.readouterr().out
    assert main(["publish", "out/soup", "me/soup", "--dry-run"]) == 0
    notes, card = capsys.readouterr().out.split("README.md:\n")
    claim = CLAIM.removeprefix("not met: ")
    assert f"note: NOT MET: {claim}" in notes
    assert f"  - **NOT MET**: {claim}" in card

    (tmp_path / "recipe.yaml").write_text(GATED)
    assert main(run) == 0
    assert there(hub).exists()
    text = (there(hub) / "README.md").read_text()
    assert "NOT MET" not in text
    assert "- met: soup must be at most 100 points worse than legal on all: " in text
