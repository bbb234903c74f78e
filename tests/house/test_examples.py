"""The example scripts run as they stand."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.commands import python
from tests.support.kernel import kernel, texts
from tests.support.sources import EXAMPLES


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a script as `python` does, in this process and the test's folder, and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_merge_two_folders(run: Callable[..., str], berts: list[Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    said = run("merge_two_folders.py", str(berts[0]), str(berts[1]), "merged", "0.25")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert f"{len(merged)} tensors were merged into merged" in said
    one, two = (load_file(folder / "model.safetensors") for folder in berts[:2])
    name = "encoder.layer.1.output.dense.weight"
    to_one, to_two = ((merged[name] - parent[name]).norm() for parent in (one, two))
    assert float(to_one / (to_one + to_two)) == pytest.approx(0.25, abs=0.01)


def test_the_geometry_of_tokens_is_that_of_each_texts_states(
    run: Callable[..., str], bert: Path, tmp_path: Path
) -> None:
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = ["a list of files", "sort", "the name of the list"]
    (tmp_path / "texts.jsonl").write_text(
        json.dumps({"query": texts[0], "pos": texts[1]}) + f"\n{texts[2]}\n{texts[2]}\n"
    )
    said = run("papers/geometry.py", "texts.jsonl", str(bert))
    row = [cell.strip() for cell in said.splitlines()[-1].strip("| ").split("|")]
    assert row[:2] == [str(bert), "3"]
    model, tokenizer = AutoModel.from_pretrained(bert), AutoTokenizer.from_pretrained(bert)
    expected = []
    for text in texts:
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt"))[0][0].double().numpy()
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
        sigma = np.linalg.svd(states, compute_uv=False)
        shares = sigma**2 / (sigma**2).sum()
        entropy = -(shares * np.log(shares)).sum()
        expected.append((100 * cosines.mean(), len(sigma), sigma[0] / sigma[-1], entropy))
    found = [float(cell.replace(",", "")) for cell in row[2:]]
    assert found == pytest.approx(np.mean(expected, axis=0), abs=0.006)


@pytest.mark.slow
def test_train_members_and_merge(bert: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    pairs = zip(tiny.WORDS, reversed(tiny.WORDS), strict=True)
    rows = [{"query": f"find the {one}", "pos": [f"{one} of {two}"]} for one, two in pairs]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = str(EXAMPLES / "train_members_and_merge.py")
    done = python(script, str(bert), str(data), "out", cwd=tmp_path)
    assert "3 members were merged into out/merged" in done.stdout
    merged = load_file(tmp_path / "out" / "merged" / "model.safetensors")
    base = load_file(bert / "model.safetensors")
    assert {k: v.shape for k, v in merged.items()} == {k: v.shape for k, v in base.items()}
    name = "encoder.layer.1.output.dense.weight"
    assert not merged[name].equal(base[name])


@pytest.mark.slow
def test_the_cells_of_the_notebook_give_what_it_shows(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "first_merge.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 6
    assert (EXAMPLES / "first_merge.ipynb").stat().st_size < 16_000, "outputs stay small"
    with kernel(tmp_path) as running:
        for cell in cells:
            messages = running.run("".join(cell["source"]))
            # The notebook keeps what a cell prints, and no lines of progress.
            names = {one.get("name") for one in cell["outputs"]}
            shown = [one for one in messages if one["content"].get("name") in {None, *names}]
            # Numbers differ from processor to processor, times from run to run.
            assert [NUMBER.sub("#", text) for text in texts(shown)] == [
                NUMBER.sub("#", "".join(one.get("text", one.get("data", {}).get("text/plain", []))))
                for one in cell["outputs"]
            ]
    assert (tmp_path / "out" / "kept" / "model.safetensors").is_file()


NUMBER = re.compile(r"\d+ min \d+ s|\d[\d.]* s|\d\.\d+|(?<=\n)\d+(?=  \w)")


@pytest.mark.slow
def test_ask_with_images_and_sound(tmp_path: Path) -> None:
    from emberge.media import MediaFolder

    from tests.support.media_models import RATE, drawing, media_model, tone

    model = media_model(tmp_path / "omni", "qwen3_omni_moe_thinker")
    drawing(1).save(tmp_path / "one.png")
    drawing(2).save(tmp_path / "two.png")
    clip = MediaFolder(tmp_path / "clips").add_clip(tone(440), RATE)
    Path(clip.path).rename(tmp_path / "tone.wav")
    script = str(EXAMPLES / "ask_with_images_and_sound.py")
    asked = ["one.png", "the list", "--"]
    candidates = ["two.png", "tone.wav", "the files", "one.png"]
    done = python(script, str(model), *asked, *candidates, cwd=tmp_path)
    ranked = done.stdout.splitlines()
    cosines = [float(line.split(maxsplit=1)[0]) for line in ranked]
    assert cosines == sorted(cosines, reverse=True)
    assert {line.split(maxsplit=1)[1] for line in ranked} == {
        *("[image two.png]", "[audio tone.wav]", "the files", "[image one.png]")
    }
    alone = python(script, str(model), "tone.wav", "--", *candidates, cwd=tmp_path)
    assert "1.000  [audio tone.wav]" in alone.stdout.splitlines()[0]
