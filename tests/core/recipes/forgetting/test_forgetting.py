"""Forgetting: a run that lets keys go ends like one that never had their rows, and it can be shown."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from emberge import EmbergeError, load_plugins
from emberge.cli.main import main
from emberge.recipes import Forgetting, trace_rows
from emberge.results import read_certificate

from tests.support import ranked_fit

CUSTOMERS = [f"customer-{i}" for i in range(24)]
GONE = ("customer-3", "customer-8")
PARTS = (1, 2, 3)
RECIPE = """\
seed: 1
steps:
  members:
    foreach: {{part: [1, 2, 3]}}
    train:
      model: {model}
      data: {{path: ./data.jsonl, name: pairs, key: customer, bag: {{parts: 3, part: $part}}}}
      sampler: {{batch_shuffle: {{batch_size: 4}}}}
      loss: infonce
      max_steps: 2
      learning_rate: 1.0e-3
  merged:
    merge: {{models: $members, base: {model}, strategy: {{dare_ties: {{density: 0.5}}}}}}
"""


def rows(without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return 144 pairs of the customers, six of each; no text occurs twice."""
    given = [
        {
            "query": f"where is item {i} of {customer}",
            "pos": [f"item {i} of {customer} is on shelf {i % 7}"],
            "customer": customer,
        }
        for i in range(6)
        for customer in CUSTOMERS
    ]
    return [row for row in given if row["customer"] not in without]


def write_run(
    folder: Path, model: Path, given: Iterable[Mapping[str, Any]], recipe: str = RECIPE
) -> Path:
    """Write data and recipe, whose text is the same wherever they are; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    (folder / "recipe.yaml").write_text(recipe.format(model=model))
    return folder


def write_keys(folder: Path, keys: Iterable[str]) -> Path:
    (folder / "gone.txt").write_text("\n".join(keys))
    return folder / "gone.txt"


def run(folder: Path) -> Path:
    """Run the folder's recipe into `out` beside it."""
    out = folder / "out"
    assert main(["run", str(folder / "recipe.yaml"), "--out", str(out), "--quiet"]) == 0
    return out


def forget(folder: Path, keys: Iterable[str], *words: str) -> int:
    listed = str(write_keys(folder, keys))
    line = ["forget", str(folder / "out"), "--keys", listed, "--inputs", str(folder), "--yes"]
    return main([*line, "--quiet", *words])


def weights(out: Path) -> dict[str, bytes]:
    """The weights of each result that a link leads to."""
    return {
        path.name: (path / "model.safetensors").read_bytes()
        for path in out.iterdir()
        if path.is_symlink() and (path / "model.safetensors").is_file()
    }


def texts_found(out: Path, text: str) -> list[str]:
    """The files of an OUT, hidden ones too, that have a text."""
    files = [path for path in out.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(out)) for path in files if text.encode() in path.read_bytes()]


@pytest.fixture(scope="module")
def whole(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all rows, which tests copy."""
    folder = write_run(tmp_path_factory.mktemp("whole"), bert, rows())
    run(folder)
    return folder


@pytest.fixture(scope="module")
def never(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of a run that never had the rows of those who go."""
    return weights(run(write_run(tmp_path_factory.mktemp("never"), bert, rows(GONE))))


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run on all rows."""
    shutil.copytree(whole, tmp_path / "place", symlinks=True)
    return tmp_path / "place"


# ── the same bytes ──────────────────────────────────────────────────────────────────────────────


def test_a_forgetting_run_ends_like_one_that_never_had_the_rows(
    place: Path, never: Mapping[str, bytes]
) -> None:
    before = weights(place / "out")
    assert before["merged"] != never["merged"]
    assert forget(place, GONE) == 0
    assert weights(place / "out") == never


def test_only_members_with_the_rows_are_trained_again(place: Path) -> None:
    before = {
        path.name: path.resolve().name for path in (place / "out").iterdir() if path.is_symlink()
    }
    untouched = [part for part in PARTS if f"members.part={part}" not in touched(place, GONE[:1])]
    stamps = {
        p: (place / f"out/members.part={p}/artifact.json").stat().st_mtime_ns for p in untouched
    }
    assert len(untouched) == 2
    assert forget(place, GONE[:1]) == 0
    for part in untouched:
        link = place / f"out/members.part={part}"
        assert link.resolve().name == before[link.name]
        assert (link / "artifact.json").stat().st_mtime_ns == stamps[part]


def touched(folder: Path, keys: Iterable[str]) -> list[str]:
    planned = Forgetting.of(folder / "out", write_keys(folder, keys), load_plugins(), folder=folder)
    return [step.id for step in planned.plan.given]


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_deletions_one_after_the_other_end_in_the_same_bytes(
    count: int, place: Path, bert: Path, tmp_path: Path
) -> None:
    for customer in CUSTOMERS[:count]:
        assert forget(place, [customer]) == 0
    expected = weights(run(write_run(tmp_path / "never", bert, rows(CUSTOMERS[:count]))))
    assert weights(place / "out") == expected


def test_rows_that_left_the_file_too_change_nothing(
    place: Path, never: Mapping[str, bytes], bert: Path
) -> None:
    assert forget(place, GONE) == 0
    stamp = (place / "out/merged/artifact.json").stat().st_mtime_ns
    shuffled = rows(GONE)
    random.Random(1).shuffle(shuffled)
    write_run(place, bert, shuffled)
    run(place)
    assert weights(place / "out") == never
    assert (place / "out/merged/artifact.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("turns", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_at_random_and_called_again_it_ends_in_the_same_bytes(
    turns: int, place: Path, never: Mapping[str, bytes], tmp_path: Path
) -> None:
    line = ["forget", str(place / "out"), "--keys", str(write_keys(place, GONE))]
    line += ["--inputs", str(place), "--yes", "--quiet"]
    draw, kills = random.Random(0), 0
    for turn in range(turns):
        (process,) = ranked_fit.start_command(line, tmp_path / "forget")
        wait_for_events(process, place / "out", 1 if not turn else draw.randint(1, 6))
        time.sleep(draw.uniform(0, 0.3))
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        kills += 1
    assert kills
    assert forget(place, GONE) == 0
    assert weights(place / "out") == never
    assert not texts_found(place / "out", GONE[0])


def wait_for_events(process: ForkServerProcess, out: Path, count: int) -> None:
    """Wait until the run's log has so many more lines, or the process has ended."""

    def lines() -> int:
        return (out / "run.log").read_text().count("\n")

    aim = lines() + count
    while process.is_alive() and lines() < aim:
        time.sleep(0.01)


@pytest.mark.slow
def test_two_ranks_end_like_two_ranks_that_never_had_the_rows(bert: Path, tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / name, bert, given)
        for name, given in (("whole", rows()), ("never", rows(GONE)))
    ]
    for folder in folders:
        run_on_two_ranks(folder)
    assert weights(folders[0] / "out")["merged"] != weights(folders[1] / "out")["merged"]
    assert forget(folders[0], GONE, "--later") == 0
    run_on_two_ranks(folders[0])
    assert weights(folders[0] / "out") == weights(folders[1] / "out")


def run_on_two_ranks(folder: Path) -> None:
    line = ["run", str(folder / "recipe.yaml"), "--quiet", "--out", str(folder / "out")]
    ranked_fit.run_command(line, folder / "ranks", 2)


@pytest.mark.slow
def test_steps_side_by_side_forget_as_well(place: Path, never: Mapping[str, bytes]) -> None:
    assert forget(place, GONE, "--launcher", "local") == 0
    assert weights(place / "out") == never


# ── nothing is left ─────────────────────────────────────────────────────────────────────────────


def test_no_file_of_the_run_has_a_forgotten_text_any_more(place: Path) -> None:
    store = place / "out/.store"
    assert texts_found(place / "out", "item 2 of customer-3")
    assert (store / "tables").is_dir()
    assert forget(place, GONE) == 0
    assert not texts_found(place / "out", "item 2 of customer-3")
    assert {path.name for path in store.iterdir()} == {"examples", "hashes.json", "hashes.lock"}
    assert not texts_found(place / "out", "customer-3")
    assert texts_found(place / "out", "item 2 of customer-4")
    names = [
        path.name for path in (place / "out").iterdir() if re.search(r"-[0-9a-f]{8}$", path.name)
    ]
    assert len(names) == 4


def test_later_runs_leave_the_rows_out(place: Path, never: Mapping[str, bytes]) -> None:
    assert forget(place, GONE) == 0
    text = (place / "recipe.yaml").read_text().replace("max_steps: 2", "max_steps: 3")
    (place / "recipe.yaml").write_text(text)
    run(place)
    assert weights(place / "out")["merged"] != never["merged"]
    assert not texts_found(place / "out", "customer-3")


def test_only_noted_keys_go_with_the_next_run(place: Path, never: Mapping[str, bytes]) -> None:
    before = weights(place / "out")
    assert forget(place, GONE, "--later") == 0
    assert weights(place / "out") == before
    run(place)
    assert weights(place / "out") == never


def test_a_damaged_list_of_forgotten_keys_stops_the_next_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forget(place, GONE) == 0
    (place / "out/forgotten.json").write_text("{}")
    line = ["run", str(place / "recipe.yaml"), "--out", str(place / "out"), "--quiet"]
    assert main(line) != 0
    assert "forgotten.json" in capsys.readouterr().err


# ── the plan, and at once ───────────────────────────────────────────────────────────────────────


def test_a_plan_changes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(str(path) for path in (place / "out").rglob("*"))
    listed = str(write_keys(place, [*GONE, "customer-99"]))
    line = ["forget", str(place / "out"), "--keys", listed, "--inputs", str(place), "--dry-run"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "rows of 2 of 3 keys" in said
    given = touched(place, GONE)
    for step in ("members.part=1", "members.part=2", "members.part=3"):
        words = "of their rows, runs again" if step in given else "stays as it is"
        assert re.search(rf"{step} .*{words}", said)
    assert re.search(r"merged .*depends on these", said)
    assert sorted(str(path) for path in (place / "out").rglob("*")) == before


def test_keys_that_are_gone_touch_nothing_any_more(place: Path) -> None:
    assert touched(place, GONE)
    assert forget(place, GONE) == 0
    stamp = (place / "out/merged/artifact.json").stat().st_mtime_ns
    assert touched(place, GONE) == []
    assert forget(place, GONE, "--now") == 0
    assert (place / "out/merged/artifact.json").stat().st_mtime_ns == stamp


def test_without_a_terminal_to_ask_at_nothing_is_changed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["forget", str(place / "out"), "--keys", str(write_keys(place, GONE))]
    assert main([*line, "--inputs", str(place)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert not (place / "out/forgotten.json").exists()


def test_the_untouched_members_are_merged_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write_keys(place, GONE[:1])
    forgetting = Forgetting.of(place / "out", keys, load_plugins(), folder=place)
    (given,) = [step.id for step in forgetting.plan.given]
    forgetting.remember()
    before = (place / "out" / given / "artifact.json").stat().st_mtime_ns
    forgetting.run_untouched(quiet=True)
    parents = json.loads((place / "out/merged/artifact.json").read_text())["parents"]
    assert parents == [f"$members.part={p}" for p in PARTS if f"members.part={p}" != given]
    assert (place / "out" / given / "artifact.json").stat().st_mtime_ns == before
    forgetting.run_again(quiet=True)
    parents = json.loads((place / "out/merged/artifact.json").read_text())["parents"]
    assert parents == [f"$members.part={p}" for p in PARTS]


def test_at_once_needs_members_without_the_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(touched(place, CUSTOMERS[:12])) == 3
    assert forget(place, CUSTOMERS[:12], "--now") == 2
    assert "--now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--keys", "missing.txt"], "no such list of keys"),
        (["--keys", "empty.txt"], "lists no key"),
        (["--keys", "gone.txt", "--recipe", "missing.yaml"], "missing.yaml"),
    ],
)
def test_what_cannot_be_read_is_refused_before_any_work(
    words: list[str],
    expected: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    write_keys(place, GONE)
    (place / "empty.txt").write_text("\n")
    assert main(["forget", "out", "--yes", *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (place / "out/forgotten.json").exists()


def test_a_folder_without_a_run_forgets_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = str(write_keys(tmp_path, GONE))
    (tmp_path / "out").mkdir()
    assert main(["forget", str(tmp_path / "out"), "--keys", keys, "--yes"]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not any((tmp_path / "out").iterdir())


def test_a_run_that_could_not_be_made_again_is_left_as_it_is(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = weights(place / "out")
    assert forget(place, CUSTOMERS[1:]) == 2
    assert "not forgotten" in capsys.readouterr().err
    assert weights(place / "out") == before
    assert not (place / "out/forgotten.json").exists()


# ── proof ───────────────────────────────────────────────────────────────────────────────────────


def evidence(
    folder: Path, keys: Iterable[str], result: str = "merged", recipe: str | None = None
) -> dict[str, str]:
    """The verdict under "", and the evidence about each ancestor."""
    listed, result_folder = write_keys(folder, keys), folder / "out" / result
    report = trace_rows(result_folder, listed, load_plugins(), recipe=recipe, folder=folder)
    return {"": report.verdict} | {a.name: a.evidence for a in report.ancestors}


def test_rows_that_were_seen_are_found_in_the_members_that_saw_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evidence(place, GONE)
    assert found[""] == "seen"
    assert {name for name, word in found.items() if name and word == "seen"} == set(
        touched(place, GONE)
    )
    line = ["verify", str(place / "out/merged"), "--inputs", str(place)]
    assert main([*line, "--forgotten", str(place / "gone.txt")]) == 1
    assert "rows of the keys were given to members.part=" in capsys.readouterr().err


def test_after_forgetting_every_step_is_shown_and_the_outside_model_is_named(
    place: Path, bert: Path
) -> None:
    assert forget(place, GONE) == 0
    found = evidence(place, GONE)
    members = {f"members.part={part}": "selected again" for part in PARTS}
    assert found == {"": "not known", "merged": "no rows", **members, str(bert): "unknown"}
    assert evidence(place, ["customer-4"])[""] == "seen"


def test_a_certificate_has_hashes_and_no_key(place: Path) -> None:
    assert forget(place, GONE) == 0
    text = (place / "out/forgotten-merged.json").read_text()
    record = json.loads(text)
    assert record["verdict"] == "not known"
    assert len(record["keys"]["keys"]) == len(GONE)
    assert (
        record["fingerprint"]
        == json.loads((place / "out/merged/artifact.json").read_text())["fingerprint"]
    )
    assert sum(a.get("rows", 0) for a in record["ancestors"]) == len(rows(GONE))
    assert "customer" not in text
    line = ["verify", str(place / "out/merged"), "--inputs", str(place)]
    line += ["--forgotten", str(place / "gone.txt"), "--certificate", str(place / "c.json")]
    assert main(line) == 0
    assert json.loads((place / "c.json").read_text())["ancestors"] == record["ancestors"]


def test_the_certificate_of_a_result_is_not_that_of_another(place: Path) -> None:
    assert forget(place, GONE) == 0
    merged = place / "out/merged"
    sentence = read_certificate(merged)
    assert "none of the 4 steps that made it was given rows of the 2 keys" in sentence
    assert read_certificate(merged.resolve()) == sentence
    assert read_certificate(place / "out/members.part=1") == ""
    text = (place / "recipe.yaml").read_text().replace("density: 0.5", "density: 0.6")
    (place / "recipe.yaml").write_text(text)
    run(place)
    assert read_certificate(merged) == ""
    (place / "out/forgotten-merged.json").write_text("{}")
    with pytest.raises(EmbergeError, match=r"forgotten-merged.json is damaged"):
        read_certificate(merged)


def test_without_its_data_a_results_own_record_speaks(place: Path) -> None:
    assert forget(place, GONE) == 0
    (place / "data.jsonl").unlink()
    found = evidence(place, GONE)
    assert [found[f"members.part={part}"] for part in PARTS] == ["recorded"] * 3
    assert evidence(place, ["customer-4"])[""] == "seen"


def test_a_member_that_did_see_the_rows_is_found_in_the_place_of_another(
    place: Path, whole: Path
) -> None:
    """The old member, with the rows, is put back where the new one was."""
    assert forget(place, GONE) == 0
    member = touched_before(whole)
    old = (whole / "out" / member).resolve()
    shutil.copytree(old, place / "out" / old.name)
    (place / "out" / member).unlink()
    (place / "out" / member).symlink_to(old.name)
    # The merge names what it was made of by content, which is no longer behind the link but still there.
    assert evidence(place, GONE)[member] == "selected again"
    shutil.rmtree(next(p for p in (place / "out").glob(f"{member}-*") if p.name != old.name))
    assert evidence(place, GONE)[member] == "unknown"
    assert evidence(place, GONE, member)[""] == "seen"


def touched_before(folder: Path) -> str:
    return touched(folder, GONE)[0]


def test_a_bag_that_had_the_rows_of_another_is_found(place: Path, bert: Path) -> None:
    """The recipe that is shown names bags, and the members were trained without them."""
    bag = "bag: {{parts: 3, part: $part}}}}"
    text = RECIPE.replace(bag, "bag: {{parts: 1, part: 1}}}}\n      seed: $part")
    run(write_run(place, bert, rows(), text))
    shown = str(write_run(place, bert, rows()) / "recipe.yaml")
    found = evidence(place, GONE, recipe=shown)
    assert [found[f"members.part={part}"] for part in PARTS] == ["seen"] * 3
    found = evidence(place, ["customer-99"], recipe=shown)
    assert [found[f"members.part={part}"] for part in PARTS] == ["differs"] * 3


def test_a_file_that_changed_after_the_training_is_found(place: Path, bert: Path) -> None:
    assert forget(place, GONE) == 0
    changed = rows()
    changed[4] = {**changed[4], "pos": ["another answer"]}
    write_run(place, bert, changed)
    found = evidence(place, GONE)
    assert found[""] == "differs"
    assert sorted(found[f"members.part={part}"] for part in PARTS) == [
        "differs",
        "selected again",
        "selected again",
    ]


def test_a_record_of_rows_that_was_tampered_with_is_found(place: Path) -> None:
    member = touched(place, GONE)[0]
    path = place / "out" / member / "row_keys.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "keys": record["keys"][:1]}))
    assert evidence(place, GONE)[member] == "differs"
    path.unlink()
    assert evidence(place, GONE)[member] == "differs"


def test_weights_of_another_training_are_found(place: Path) -> None:
    assert forget(place, GONE) == 0
    first, second = (place / f"out/members.part={part}/model.safetensors" for part in (1, 2))
    shutil.copy(first, second)
    assert evidence(place, GONE)["members.part=2"] == "unknown"
    assert evidence(place, GONE, "members.part=2")[""] == "differs"


def test_a_parent_that_another_run_made_is_walked_through(place: Path, tmp_path: Path) -> None:
    text = "seed: 2\nsteps:\n  last:\n    merge: {{models: [{model}, {model}], strategy: linear}}\n"
    other = write_run(tmp_path / "other", place / "out/merged", rows(), text)
    run(other)
    assert evidence(other, GONE, "last")[""] == "seen"
    assert forget(place, GONE) == 0
    shutil.rmtree(other / "out")
    run(other)
    found = evidence(other, GONE, "last")
    assert found[""] == "not known"
    assert found["members.part=1"] == "recorded"


def test_adapters_are_walked_through_and_an_exchanged_one_is_found(
    bert: Path, tmp_path: Path
) -> None:
    lora = "loss: infonce\n      backbone: {{text_encoder: {{lora: {{rank: 2}}}}}}"
    text = RECIPE.replace("loss: infonce", lora).replace(
        "dare_ties: {{density: 0.5}}", "linear: {{}}"
    )
    text = text.replace(" base: {model},", "")
    folder = write_run(tmp_path / "place", bert, rows(), text)
    run(folder)
    assert forget(folder, GONE) == 0
    members = [f"members.part={part}" for part in PARTS]
    found = evidence(folder, GONE)
    assert [found[member] for member in members] == ["selected again"] * 3
    first, second = (
        folder / "out" / member / "adapter_model.safetensors" for member in members[:2]
    )
    shutil.copy(first, second)
    found = evidence(folder, GONE)
    assert [found[member] for member in members] == ["selected again", "unknown", "selected again"]


def test_a_record_of_a_stranger_is_read_as_far_as_it_is_one(place: Path) -> None:
    path = place / "out/members.part=1/artifact.json"
    record = json.loads(path.read_text())
    path.write_text(
        json.dumps({**record, "rows": ["a", {"rows": "many"}], "inputs": [3, None, {}]})
    )
    assert evidence(place, ["customer-99"], "members.part=1")[""] in ("differs", "not known")


def test_data_without_keys_are_not_known(bert: Path, tmp_path: Path) -> None:
    text = RECIPE.replace(
        "key: customer, bag: {{parts: 3, part: $part}}}}", "limit: 40}}\n      seed: $part"
    )
    folder = write_run(tmp_path / "place", bert, rows(), text)
    run(folder)
    found = evidence(folder, GONE)
    assert found[""] == "not known"
    assert found["./data.jsonl"] == "unknown"
    assert [found[f"members.part={part}"] for part in PARTS] == ["unknown"] * 3


def test_a_folder_that_is_no_result_is_refused(place: Path, tmp_path: Path) -> None:
    line = ["verify", str(tmp_path), "--forgotten", str(write_keys(place, GONE))]
    assert main(line) != 0


# ── what is made of data ────────────────────────────────────────────────────────────────────────

SPLIT = """\
seed: 1
steps:
  parts:
    split: {{data: {{path: ./data.jsonl, name: pairs, key: customer}}, share: 0.1}}
  members:
    foreach: {{part: [1, 2, 3]}}
    train:
      model: {model}
      data: {{path: $parts, bag: {{parts: 3, part: $part}}}}
      sampler: {{batch_shuffle: {{batch_size: 4}}}}
      loss: infonce
      max_steps: 2
  merged:
    merge: {{models: $members, strategy: linear}}
"""


def test_data_that_a_step_made_of_the_rows_are_made_again(bert: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "place", bert, rows(), SPLIT)
    never = write_run(tmp_path / "never", bert, rows(GONE), SPLIT)
    run(folder)
    assert touched(folder, GONE) == ["parts"]
    assert forget(folder, GONE) == 0
    assert weights(folder / "out") == weights(run(never))
    assert not texts_found(folder / "out", "customer-3")
    found = evidence(folder, GONE)
    assert found["parts"] == "selected again"
    assert {found[f"members.part={part}"] for part in PARTS} == {"selected again"}
