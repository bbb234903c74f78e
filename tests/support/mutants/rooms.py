"""The table of what is mutated and of the tests that must find it. Edit it when files move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MERGE = "tests/plugins/merge"
TRAIN = "tests/plugins/train"
STEPS = "plugins/emberge_data/steps"
STEP_TESTS = "tests/plugins/data/steps"


@dataclass(frozen=True)
class Room:
    """Files that are mutated, and the tests that may find it; patterns are relative to the project.

    Files of `others` are those of other rooms, which have tests of their own.
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    others: tuple[str, ...] = ()

    def files(self, root: Path) -> list[Path]:
        """Return the room's source files, relative to `root`."""
        found = {path for pattern in self.sources for path in root.glob(pattern)}
        found -= {path for pattern in self.others for path in root.glob(pattern)}
        return sorted(path.relative_to(root) for path in found)

    def test_files(self, root: Path) -> list[Path]:
        """Return the room's test files, relative to `root`."""
        found = {path for pattern in self.tests for path in root.glob(pattern)}
        return sorted(path.relative_to(root) for path in found)


_OWN_ROOMS: Mapping[str, Room] = {
    "methods": Room(
        ("plugins/emberge_merge/methods/**/*.py", "plugins/emberge_codiemb/layer_softmax.py"),
        (
            f"{MERGE}/test_directions.py",
            f"{MERGE}/test_fisher.py",
            f"{MERGE}/test_group.py",
            f"{MERGE}/test_merge_demands.py",
            f"{MERGE}/test_merge_laws.py",
            f"{MERGE}/test_mergekit_agreement.py",
            f"{MERGE}/test_mergekit_differences.py",
            f"{MERGE}/test_regmean.py",
            f"{MERGE}/test_stochastic.py",
            f"{MERGE}/test_trim.py",
            f"{MERGE}/test_worked_numbers.py",
            "tests/plugins/codiemb/test_layer_softmax.py",
        ),
    ),
    "losses": Room(
        ("plugins/emberge_train/losses/*.py", "plugins/emberge_codiemb/losses/*.py"),
        (
            f"{TRAIN}/test_angle.py",
            f"{TRAIN}/test_binary_cross_entropy.py",
            f"{TRAIN}/test_cosent.py",
            f"{TRAIN}/test_distillation.py",
            f"{TRAIN}/test_flops.py",
            f"{TRAIN}/test_guides.py",
            f"{TRAIN}/test_infonce.py",
            f"{TRAIN}/test_keep_space.py",
            f"{TRAIN}/test_loss_agreement.py",
            f"{TRAIN}/test_loss_demands.py",
            f"{TRAIN}/test_loss_laws.py",
            f"{TRAIN}/test_matryoshka.py",
            f"{TRAIN}/test_mlm.py",
            f"{TRAIN}/test_next_tokens.py",
            f"{TRAIN}/test_sentence_transformers_losses.py",
            f"{TRAIN}/test_teachers.py",
            f"{TRAIN}/test_training_warnings.py",
            "tests/plugins/codiemb/test_mid_nce.py",
            "tests/plugins/codiemb/test_ranking_losses.py",
            "tests/plugins/codiemb/test_worked_numbers.py",
            "tests/core/testing/test_check_loss.py",
        ),
    ),
    "samplers": Room(
        (
            "plugins/emberge_train/samplers/*.py",
            "plugins/emberge_codiemb/mixed.py",
            "plugins/emberge_boom/samplers/bagging.py",
            "plugins/emberge_boom/samplers/core_subset.py",
        ),
        (
            f"{TRAIN}/test_batch_shuffle.py",
            f"{TRAIN}/test_mixture.py",
            f"{TRAIN}/test_samplers.py",
            "tests/plugins/boom/test_bagging.py",
            "tests/plugins/boom/test_core_subset.py",
            "tests/plugins/boom/test_worked_numbers.py",
            "tests/plugins/codiemb/test_mixed.py",
        ),
    ),
    "bootstrap": Room(
        ("plugins/emberge_evaluate/bootstrap.py",), ("tests/plugins/evaluate/test_bootstrap.py",)
    ),
    "choice": Room(
        ("plugins/emberge_evaluate/selection.py",), ("tests/plugins/evaluate/test_selection.py",)
    ),
    "journal": Room(
        ("core/emberge/merging/streaming/stream.py",),
        (
            "tests/core/merging/streaming/test_build_checkpoint.py",
            "tests/core/merging/streaming/test_journal.py",
        ),
    ),
    "files": Room(
        ("core/emberge/files/atomic.py", "core/emberge/files/locks.py"),
        (
            "tests/core/files/test_atomic.py",
            "tests/core/files/test_disk_space.py",
            "tests/core/files/test_locks.py",
        ),
    ),
    "states": Room(
        ("core/emberge/training/loop/checkpoints.py",),
        ("tests/core/training/loop/test_checkpoints.py",),
    ),
    "optimizer": Room(
        ("core/emberge/training/loop/optimizer.py",),
        (
            "tests/core/training/loop/test_fit.py",
            "tests/core/training/loop/test_optimizer.py",
        ),
    ),
    "media": Room(
        ("core/emberge/media/*.py",),
        (
            "tests/core/media/*.py",
            "tests/core/data/test_media_rows.py",
            "tests/hostile/test_images.py",
            "tests/hostile/test_sounds.py",
        ),
    ),
    "data": Room(
        ("core/emberge/data/**/*.py", "plugins/emberge_data/*.py"),
        (
            "tests/core/data/test_*.py",
            "tests/plugins/data/test_readers.py",
            "tests/hostile/test_data_files.py",
        ),
    ),
    "copies": Room(
        (
            f"{STEPS}/text_similarity.py",
            f"{STEPS}/decontaminate/*.py",
            f"{STEPS}/deduplicate/*.py",
            f"{STEPS}/split_step.py",
            f"{STEPS}/outcome.py",
            f"{STEPS}/row_texts.py",
        ),
        (
            f"{STEP_TESTS}/test_minhash.py",
            f"{STEP_TESTS}/test_normalise.py",
            f"{STEP_TESTS}/test_decontaminate.py",
            f"{STEP_TESTS}/test_deduplicate*.py",
            f"{STEP_TESTS}/test_outcome.py",
            f"{STEP_TESTS}/test_split.py",
        ),
    ),
    "mining": Room(
        (
            f"{STEPS}/negative_choice.py",
            f"{STEPS}/search/*.py",
            f"{STEPS}/cross_encoder.py",
            f"{STEPS}/pair_scores.py",
            f"{STEPS}/score_pairs.py",
            f"{STEPS}/listed_set.py",
            f"{STEPS}/*filter*.py",
            f"{STEPS}/mine_hard_negatives.py",
            f"{STEPS}/kept_blocks.py",
            f"{STEPS}/teacher.py",
            f"{STEPS}/taught_step.py",
        ),
        (
            f"{STEP_TESTS}/test_negative_choice.py",
            f"{STEP_TESTS}/test_mined_rows.py",
            f"{STEP_TESTS}/test_exact_search.py",
            f"{STEP_TESTS}/test_found_passages.py",
            f"{STEP_TESTS}/test_kept_scores.py",
            f"{STEP_TESTS}/test_score_pairs.py",
            f"{STEP_TESTS}/test_mining_killed.py",
            f"{STEP_TESTS}/test_shards.py",
            f"{STEP_TESTS}/test_steps_with_teachers.py",
            f"{STEP_TESTS}/test_teacher_prompts.py",
        ),
    ),
    "templates": Room(
        (
            "core/emberge/model_folder/config_fields.py",
            "core/emberge/model_folder/template_checks.py",
            "core/emberge/model_folder/tokenizers.py",
        ),
        ("tests/core/model_folder/test_config_fields.py", "tests/hostile/test_broken_models.py"),
    ),
    "layouts": Room(
        ("core/emberge/model_folder/st_layout.py",),
        (
            "tests/core/model_folder/test_checkpoint.py",
            "tests/core/model_folder/test_folders.py",
            "tests/core/model_folder/test_model_files.py",
            "tests/hostile/test_broken_models.py",
            "tests/plugins/bidirlm/test_composed_models.py",
            "tests/plugins/encoder/test_backbone_options.py",
            "tests/plugins/encoder/test_saved_folders.py",
            "tests/plugins/encoder/test_text_encoder.py",
        ),
    ),
    "stored_rows": Room(
        ("core/emberge/numerics/stored_rows.py",),
        (
            "tests/core/numerics/test_tested_kernels.py",
            "tests/hostile/test_broken_models.py",
            f"{MERGE}/test_kernels.py",
            f"{MERGE}/test_rows_in_files.py",
        ),
    ),
    "servers": Room(
        (
            "core/emberge/network/*.py",
            "core/emberge/tensor_files/*.py",
            "core/emberge/tensor_files/remote_file.py",
        ),
        (
            "tests/core/network/*.py",
            "tests/core/tensor_files/test_server_kinds.py",
            "tests/core/tensor_files/test_tensor_fetcher.py",
            "tests/core/tensor_files/test_servers.py",
        ),
    ),
    "hub": Room(
        ("plugins/emberge_hub/*.py",),
        ("tests/plugins/hub/test_*.py",),
    ),
    "publish": Room(
        ("plugins/emberge_publish/*.py",),
        (
            "tests/hostile/test_publishing.py",
            "tests/plugins/publish/test_planned_files.py",
            "tests/plugins/publish/test_publish.py",
            "tests/plugins/publish/test_publish_verb.py",
        ),
    ),
    "export": Room(
        ("plugins/emberge_export/*.py",),
        (
            "tests/plugins/export/test_parity.py",
            "tests/plugins/export/test_export.py",
            "tests/plugins/export/test_figures_and_servers.py",
            "tests/plugins/export/test_programs.py",
        ),
    ),
    "report": Room(
        ("plugins/emberge_report/card/*.py", "core/emberge/wording.py"),
        (
            "tests/core/test_wording.py",
            "tests/plugins/report/test_cards_and_tables.py",
            "tests/plugins/report/test_model_card.py",
            "tests/plugins/report/test_whole_cards.py",
        ),
    ),
}


def _rest_of(plugin: str, *tests: str) -> Room:
    """Return a room of a plugin's files that no room above has, with the plugin's tests and others."""
    sources = f"plugins/emberge_{plugin}/**/*.py"
    above = tuple(pattern for room in _OWN_ROOMS.values() for pattern in room.sources)
    found = (f"tests/plugins/{plugin}/**/test_*.py", "tests/house/test_steps.py", *tests)
    return Room((sources,), found, above)


ROOMS: Mapping[str, Room] = {
    **_OWN_ROOMS,
    "packing": Room(
        ("core/emberge/encoding/embedder.py", "core/emberge/encoding/packing.py"),
        (
            "tests/core/encoding/test_embedder.py",
            "tests/core/encoding/test_pack*.py",
            "tests/core/training/loop/test_packing.py",
            "tests/plugins/encoder/test_packed_rows.py",
        ),
    ),
    "row_kernels": Room(
        ("core/emberge/numerics/row_kernels.py",),
        (
            "tests/core/numerics/test_tested_kernels.py",
            f"{MERGE}/test_kernels.py",
            f"{MERGE}/test_rows_in_files.py",
            f"{MERGE}/test_merge_laws.py",
            f"{MERGE}/test_mergekit_agreement.py",
        ),
    ),
    "adapt": _rest_of("adapt"),
    "bidirlm": _rest_of("bidirlm"),
    "boom": _rest_of("boom"),
    "codiemb": _rest_of("codiemb"),
    "data_steps": _rest_of("data"),
    "demo": _rest_of("demo"),
    "encoder": _rest_of("encoder"),
    "evaluate": _rest_of("evaluate"),
    "fine_tuned": _rest_of("fine_tuned", "tests/hostile/test_divergence.py"),
    "local": Room(("plugins/emberge_local/*.py",), ("tests/core/recipes/run/test_launchers.py",)),
    "merge_steps": _rest_of("merge"),
    "mergekit": _rest_of("mergekit"),
    "moe": _rest_of("moe"),
    "mteb": _rest_of("mteb"),
    "ray": _rest_of("ray"),
    "report_page": _rest_of("report"),
    "smaller": _rest_of("smaller"),
    "statistics": _rest_of("statistics"),
    "terminal": _rest_of("terminal", "tests/hostile/test_terminal.py"),
    "train_step": _rest_of("train"),
    "weights": _rest_of("weights"),
}
