"""`emberge adapt` from pairs to a model: run as a user runs it, with a tiny random encoder as the base."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from emberge.cli.main import main
from emberge_adapt import adapt
from emberge_evaluate import probe_sets

from tests.support.tiny import WORDS


def write_pairs(path: Path, count: int, seed: int = 0) -> Path:
    """Write pairs whose documents share most words with their queries."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["frage", "antwort"])
        for _ in range(count):
            words = draw.sample(WORDS, 4)
            table.writerow([" ".join(words), " ".join([*words[:3], *draw.sample(WORDS, 4)])])
    return path


class Run:
    """A finished call of `emberge adapt`: its words, exit code, output and OUT."""

    def __init__(self, words: list[str], out: Path) -> None:
        self.words, self.out = words, out
        self.code, self.text = self.repeat()

    def repeat(self, *words: str) -> tuple[int, str]:
        """Call it again, with more words."""
        shown = StringIO()
        with redirect_stdout(shown):
            code = main([*self.words, *words])
        return code, shown.getvalue()


def adapted(bert: Path, folder: Path, count: int, *more: str) -> Run:
    pairs = write_pairs(folder / "pairs.csv", count)
    words = ["adapt", str(pairs), "--columns", "query=frage,document=antwort"]
    return Run([*words, "--model", str(bert), *more, "--out", str(folder / "out")], folder / "out")


@pytest.fixture(scope="module")
def few_probes() -> Iterator[None]:
    """Of the evaluation sets that every machine has two, which are read in a moment."""
    sources = {name: probe_sets._SOURCES[name] for name in ("places", "things")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe_sets, "_SOURCES", sources)
        yield


@pytest.fixture(scope="module")
def run(bert: Path, few_probes: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return adapted(bert, tmp_path_factory.mktemp("adapt"), 300, "--effort", "quick")


def test_an_adaptation_ends_with_a_model_that_loads_and_a_screen(run: Run) -> None:
    from sentence_transformers import SentenceTransformer

    assert run.code in (0, 3)
    assert f"model       {run.out / 'model'}" in run.text
    vectors = SentenceTransformer(str(run.out / "model"), device="cpu").encode(["open a file"])
    assert vectors.shape[0] == 1
    assert (run.out / "report" / "report.html").is_file()
    assert (run.out / "model" / "README.md").is_file()
    # Base and training are members of the merge.
    artifact = json.loads((run.out / "model" / "artifact.json").read_text("utf-8"))
    assert artifact["parents"][0] == "$trained"
    assert len(artifact["parents"]) == 2


def test_the_exit_code_is_that_of_the_gate(run: Run) -> None:
    scores = json.loads((run.out / "scores" / "scores.json").read_text("utf-8"))
    met = all(verdict["met"] for verdict in scores["requirements"])
    assert run.code == (0 if met else 3)
    assert met or any(word in run.text for word in ("no gain", "forgotten"))


def finished_folders(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_dir() and not path.is_symlink()}


def test_the_printed_recipe_is_the_same_run_and_the_same_command_goes_on(
    run: Run, tmp_path: Path
) -> None:
    """Its steps have the same fingerprints: run into the same OUT, it makes no other folder."""
    code, recipe = run.repeat("--print")
    assert code == 0
    (tmp_path / "adapt.yaml").write_text(recipe, "utf-8")
    before = finished_folders(run.out)
    main(["run", str(tmp_path / "adapt.yaml"), "--out", str(run.out), "--quiet"])
    assert finished_folders(run.out) == before
    # Without the report's result, only the report is made again.
    shutil.rmtree((run.out / "report").resolve())
    (run.out / "report").unlink()
    code, text = run.repeat()
    assert (code, finished_folders(run.out)) == (run.code, before)
    assert (run.out / "report" / "report.html").is_file()
    # With other options only what depends on them is done again: here, the weights and what follows.
    (tmp_path / "docs.txt").write_text("open\n", "utf-8")
    code, text = run.repeat("--documents", str(tmp_path / "docs.txt"))
    assert f"{tmp_path / 'docs.txt'}: 1 further document, in the test" in text
    log = (run.out / "run.log").read_text("utf-8").rpartition("run started")[2]
    done = set(re.findall(r"(\S+): finished already", log))
    assert done == {"unique", "parts", "clean", "trained", "probe"}
    assert (run.out / "trained" / "model.safetensors").is_file()
    assert f"without the merge: {run.out / 'trained'}" in text


def test_from_python_the_same_call_gives_model_scores_report_and_recipe(
    run: Run, bert: Path
) -> None:
    folder = run.out.parent
    result = adapt(
        folder / "pairs.csv",
        out=run.out,
        model=str(bert),
        effort="quick",
        columns={"query": "frage", "document": "antwort"},
        quiet=True,
    )
    assert Path(result) == Path(result.model) == run.out / "model"
    assert {"model", "trained"} < {row["model"] for row in result.scores}
    assert result.report.name == "report.html"
    assert result.recipe.read_text("utf-8") == run.repeat("--print")[1]
    assert result.load(device="cpu").encode(["open a file"]).shape[0] == 1
    assert str(result) in run.text


def refuse(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command that must be refused before any work."""
    assert main(["adapt", *words]) == 2
    return capsys.readouterr().err


def test_a_model_that_is_no_encoder_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv", 60)
    (tmp_path / "classifier").mkdir()
    (tmp_path / "classifier" / "config.json").write_text('{"model_type": "vit"}', "utf-8")
    words = [str(pairs), "--model", str(tmp_path / "classifier"), "--out", str(tmp_path / "out")]
    assert "classifier" in refuse(words, capsys)
    assert not (tmp_path / "out").exists()


def test_missing_or_useless_data_is_named_before_any_work(
    tmp_path: Path, bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = str(write_pairs(tmp_path / "pairs.csv", 60))
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "a.md").write_text("open\n", "utf-8")
    (tmp_path / "docs.jsonl").write_text('{"text": "open"}\n{"text": " "}\n', "utf-8")
    (tmp_path / "none.txt").touch()
    asked = [pairs, "--columns", "query=frage,document=antwort", "--model", str(bert)]
    for words, *named in (
        ([pairs, "--model", "nobody/nothing", "--print"], "nobody/nothing", "--model"),
        ([pairs, "--effort", "thorogh"], "did you mean 'thorough'"),
        (["missing.csv"], "--out"),
        ([*asked, "--test", str(tmp_path / "real.csv"), "--print"], "real.csv"),
        (
            [*asked, "--test", str(tmp_path / "pages"), "--print"],
            "pages: has documents and no queries",
        ),
        ([*asked, "--test", pairs, "--print"], "pairs.csv: is the data too"),
        ([*asked, "--documents", str(tmp_path / "none.txt"), "--print"], "none.txt: has no doc"),
        ([*asked, "--documents", str(tmp_path / "docs.jsonl"), "--print"], "docs.jsonl:2:"),
        (
            [*asked, "--documents", str(tmp_path / "pages"), "--print"],
            "pages: further documents are in one file",
        ),
    ):
        error = refuse(words, capsys)  # type: ignore[arg-type]
        assert [word for word in named if word not in error] == []


@pytest.mark.parametrize(("name", "mined"), [("docs.jsonl", True), ("docs.txt", False)])
def test_further_documents_are_searched_and_rows_of_them_mined(
    tmp_path: Path, bert: Path, name: str, mined: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.csv", 300)
    (tmp_path / name).write_text('{"text": "open"}\n', "utf-8")
    words = [str(pairs), "--columns", "query=frage,document=antwort", "--model", str(bert)]
    words += ["--documents", str(tmp_path / name), "--effort", "thorough"]
    assert main(["adapt", *words, "--print"]) == 0
    recipe = capsys.readouterr().out
    assert f"documents: {tmp_path / name}" in recipe
    assert (f"corpus: {tmp_path / name}" in recipe) == mined
