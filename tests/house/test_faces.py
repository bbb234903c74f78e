"""Tests take what is another room's from the face of that room, as everybody else does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from inspect import isclass, isfunction
from pathlib import Path

import pytest

from tests.support.sources import (
    FACES,
    PLUGINS,
    ROOT,
    TESTS,
    faces_below,
    imports,
    plugin_packages,
    python_files,
)

# Places that attack a part, measure it or end it in the middle: they name what its users need not know.
INSIDE = ("benchmarks", "gpu", "hostile", "support")
# Tests of what two rooms do together.
TOGETHER = {
    "core/data/test_catalogue.py": "emberge.recipes.references",
    "core/data/test_domains.py": "emberge.training.plan.batch_plan",
    "core/encoding/test_cache_combinations.py": " ".join(
        (
            "emberge.training.objective",
            "emberge.training.tables.batch_texts",
            "emberge.training.tables.example_table",
        )
    ),
    "core/files/test_power_loss_stores.py": " ".join(
        ("emberge.evaluating.scoring", "emberge.merging.statistics_file")
    ),
    "core/merging/test_full_disk.py": "emberge.tensor_files.tensor_writer",
    "core/merging/test_merge_checkpoints.py": "emberge.tensor_files.write_queue",
    "core/merging/test_whole_models.py": "emberge.model_folder.copies",
    "core/recipes/checks/test_plan_shown.py": "emberge.merging.streaming.cost",
    "core/tensor_files/test_server_kinds.py": "emberge.network.request_errors",
    "core/training/loop/test_packing.py": "emberge.encoding.packing",
    "core/training/loop/test_power_loss_training.py": "emberge.recipes.run.run_log",
    "house/test_documented.py": "emberge.recipes.docs.describe",
    "merge_recipes/test_bidirlm_recipes.py": "emberge_mteb.hub_tasks",
    "merge_recipes/test_codiemb_paper.py": "emberge_mteb.hub_tasks",
    "plugins/codiemb/test_layer_softmax.py": "emberge.merging.statistics_file",
    "plugins/codiemb/test_mixed.py": "emberge.training.plan.batch_plan",
    "plugins/codiemb/test_ranking_losses.py": "emberge.numerics.score_tables",
    "plugins/codiemb/test_similarity_training.py": "emberge.training.plan.preview",
    "plugins/evaluate/test_against_linear.py": "emberge_report.conclusions",
    "plugins/merge/test_adapter_outputs.py": "emberge.merging.adapter_output.low_rank",
    "plugins/merge/test_adapters_on_bases.py": "emberge.merging.statistics_file",
    "plugins/merge/test_fisher.py": "emberge.merging.statistics_file",
    "plugins/merge/test_trim.py": "emberge.contracts.stage",
    "plugins/merge/test_worked_numbers.py": "emberge.merging.streaming.build_jobs",
    "plugins/statistics/test_measure_statistics.py": "emberge.merging.statistics_file",
    "plugins/train/test_guides.py": " ".join(
        (
            "emberge.training.objective",
            "emberge.training.plan.batch_plan",
            "emberge.training.tables.batch_texts",
            "emberge.training.tables.example_table",
            "emberge.training.tables.guides",
        )
    ),
    "plugins/train/test_loss_agreement.py": "emberge.numerics.score_tables",
    "plugins/train/test_mixture.py": "emberge.training.plan.batch_plan",
    "plugins/train/test_mlm.py": "emberge.numerics.score_tables",
    "recipes_printed/test_boom.py": "emberge_mteb.hub_tasks",
    "recipes_printed/test_codiemb.py": "emberge_mteb.hub_tasks",
}
PLUGIN_FACES = faces_below(PLUGINS)


def room_under_test(file: Path) -> str:
    """The room that a test file is about: `tests/core/merging/...`, `tests/plugins/moe/...`."""
    kind, name, *_ = (*file.relative_to(TESTS).with_suffix("").parts, "")
    return {"core": f"emberge.{name}", "plugins": f"emberge_{name}"}.get(kind, "")


def room_of(module: str) -> str:
    first, _, rest = module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "emberge" and rest else first


def past_faces(file: Path, tested: str, root: Path = ROOT) -> Iterator[tuple[str, int]]:
    """The modules behind a face that a test of the room `tested` imports, each with the line."""
    for found in imports(file, root):
        room = room_of(found.module)
        known = room in FACES if room.startswith("emberge.") else (PLUGINS / room).is_dir()
        if known and found.module != room and room != tested:
            yield found.module, found.line


OUTSIDE = [file for file in python_files(TESTS) if file.relative_to(TESTS).parts[0] not in INSIDE]


def test_tests_take_what_is_another_rooms_from_its_face() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in OUTSIDE
        for module, line in past_faces(file, room_under_test(file))
        if module not in TOGETHER.get(file.relative_to(TESTS).as_posix(), "").split()
    ]
    assert not wrong


def test_every_exception_is_still_one() -> None:
    needed = {
        file.relative_to(TESTS).as_posix(): {
            module for module, _ in past_faces(file, room_under_test(file))
        }
        for file in OUTSIDE
    }
    idle = {
        name: module
        for name, modules in TOGETHER.items()
        for module in modules.split()
        if module not in needed.get(name, ())
    }
    assert not idle


@pytest.mark.parametrize(
    ("face", "name"), [(face, name) for face, names in PLUGIN_FACES.items() for name in names]
)
def test_a_plugins_face_leads_to_the_name(face: str, name: str) -> None:
    thing = getattr(importlib.import_module(face), name)
    assert not (isclass(thing) or isfunction(thing)) or thing.__name__ == name


@pytest.mark.parametrize("package", plugin_packages(), ids=lambda package: package.name)
def test_a_plugin_has_its_hooks_beside_its_face(package: Path) -> None:
    assert (package / "hooks.py").is_file()
    assert "hookimpl" not in (package / "__init__.py").read_text("utf-8")
    assert len(PLUGIN_FACES.get(package.name, ())) <= 30


def test_the_rule_sees_a_module_behind_a_face(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "from emberge.merging.streaming.jobs import CopyJob\n"
        "from emberge.merging import plan_merge\n"
        "from emberge_merge.methods import strategies\n"
        "from emberge.data.rows import row_parser\n"
    )
    seen = [("emberge.merging.streaming.jobs", 1), ("emberge_merge.methods", 3)]
    assert list(past_faces(file, "emberge.data", tmp_path)) == seen
    assert room_under_test(TESTS / "core" / "merging" / "test_x.py") == "emberge.merging"
    assert room_under_test(TESTS / "plugins" / "moe" / "test_x.py") == "emberge_moe"
    assert room_under_test(TESTS / "house" / "test_x.py") == ""
