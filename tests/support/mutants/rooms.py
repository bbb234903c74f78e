"""The table of what is mutated and of the tests that must find it. Edit it when files move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STANDARD = "tests/plugins/standard"


@dataclass(frozen=True)
class Room:
    """Files that are mutated, and the tests that may find it; patterns are relative to the project."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self, root: Path) -> list[Path]:
        """Return the room's source files, relative to `root`."""
        found = {path for pattern in self.sources for path in root.glob(pattern)}
        return sorted(path.relative_to(root) for path in found)

    def test_files(self, root: Path) -> list[Path]:
        """Return the room's test files, relative to `root`."""
        found = {path for pattern in self.tests for path in root.glob(pattern)}
        return sorted(path.relative_to(root) for path in found)


ROOMS: Mapping[str, Room] = {
    "methods": Room(
        ("plugins/emberge_standard/merging/*.py", "plugins/emberge_codiemb/layer_softmax.py"),
        (
            f"{STANDARD}/test_delta_methods.py",
            f"{STANDARD}/test_directions.py",
            f"{STANDARD}/test_fisher.py",
            f"{STANDARD}/test_granularity.py",
            f"{STANDARD}/test_group.py",
            f"{STANDARD}/test_merge_demands.py",
            f"{STANDARD}/test_merge_laws.py",
            f"{STANDARD}/test_merge_properties.py",
            f"{STANDARD}/test_mergekit_agreement.py",
            f"{STANDARD}/test_mergekit_differences.py",
            f"{STANDARD}/test_regmean.py",
            f"{STANDARD}/test_stochastic.py",
            f"{STANDARD}/test_trim.py",
            f"{STANDARD}/test_worked_numbers.py",
            "tests/plugins/codiemb/test_layer_softmax.py",
        ),
    ),
    "losses": Room(
        ("plugins/emberge_standard/losses/*.py", "plugins/emberge_codiemb/losses/*.py"),
        (
            f"{STANDARD}/test_angle.py",
            f"{STANDARD}/test_cosent.py",
            f"{STANDARD}/test_distillation.py",
            f"{STANDARD}/test_guides.py",
            f"{STANDARD}/test_infonce.py",
            f"{STANDARD}/test_loss_agreement.py",
            f"{STANDARD}/test_loss_demands.py",
            f"{STANDARD}/test_loss_laws.py",
            f"{STANDARD}/test_matryoshka.py",
            f"{STANDARD}/test_mlm.py",
            f"{STANDARD}/test_sentence_transformers_losses.py",
            "tests/plugins/codiemb/test_ranking_losses.py",
            "tests/core/test_check_loss.py",
        ),
    ),
    "samplers": Room(
        (
            "plugins/emberge_standard/samplers/*.py",
            "plugins/emberge_codiemb/samplers/*.py",
            "plugins/emberge_boom/bagging.py",
            "plugins/emberge_boom/core_subset.py",
        ),
        (
            f"{STANDARD}/test_batch_shuffle.py",
            f"{STANDARD}/test_samplers.py",
            "tests/plugins/boom/test_bagging.py",
            "tests/plugins/boom/test_core_subset.py",
            "tests/plugins/boom/test_worked_numbers.py",
            "tests/plugins/codiemb/test_mixed.py",
        ),
    ),
    "bootstrap": Room(
        ("plugins/emberge_standard/bootstrap.py",), (f"{STANDARD}/test_bootstrap.py",)
    ),
    "journal": Room(
        ("core/emberge/merging/journal.py",),
        ("tests/core/test_journal.py", "tests/core/test_publish.py"),
    ),
    "states": Room(
        ("core/emberge/training/saves.py",),
        ("tests/core/test_saves.py",),
    ),
    "optimizer": Room(
        ("core/emberge/training/optimizer.py",),
        ("tests/core/test_fit.py",),
    ),
}
