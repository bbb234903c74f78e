"""Search of weights by layer: fitted on half of the queries, used if they are better on the other half."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from emberge import Backbone, EmbergeError, Model, PerTensor, Stage, Workspace, stable_seed
from emberge.merging import MergePlan
from numpy.typing import NDArray

from emberge_weights.candidates import HeldOut, halves, mean_differences
from emberge_weights.layers.fit import fit_coefficients
from emberge_weights.layers.labelled_texts import LabelledTexts
from emberge_weights.layers.member_tensors import Blocks, MixedForward, blocks_of, member_tensors
from emberge_weights.members import Prompting, SetEmbedder, SideVectors, member_inputs
from emberge_weights.real_merges import merge_and_embed, merged_folder
from emberge_weights.search_options import ROUNDS
from emberge_weights.set_scores import score_set
from emberge_weights.unit_scores import UnitScores
from emberge_weights.weight_sets import WeightSet

Array = NDArray[np.float64]
Places = NDArray[np.int64]
PROBED = 8


@dataclass(frozen=True, eq=False)
class Layers:
    """Coefficients [blocks, members], and their held-out gain over one weighting for all blocks.

    The coefficients are the means of the fits on the two halves. `by_tensor` has each member's weights of
    tensors, as a merge takes them.
    """

    blocks: Sequence[str]
    coefficients: Array
    by_tensor: Sequence[PerTensor]
    gain: HeldOut


def open_members(
    models: Sequence[Model], backbone: Backbone, plan: MergePlan, workspace: Workspace
) -> tuple[Blocks, MixedForward]:
    """Return the blocks of a merge of models, and the forward pass with coefficients by block and model.

    Raises:
        CheckpointError: if a model's parameters are not the tensors that a merge combines.
    """
    blocks = blocks_of(plan)
    members, encoder = member_tensors(models, backbone, blocks, workspace)
    return blocks, MixedForward(encoder, members)


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerSearch:
    """Search of weights by layer, given the members' vectors of the sets."""

    models: Sequence[Model]
    members: Sequence[Sequence[SideVectors]]
    sets: Sequence[WeightSet]
    blocks: Blocks
    forward: MixedForward
    strategy: Stage
    embedder: SetEmbedder
    seed: int

    def run(self, flat: Array) -> Layers:
        """Return the coefficients, fitted from the weights `flat` [members].

        Raises:
            EmbergeError: if a model does not compute with the parameters that it is given.
        """
        labelled = [self._label_texts(number, flat) for number in range(len(self.sets))]
        self._require_following(labelled[0])
        sizes = [len(weight_set.queries) for weight_set in self.sets]
        first, second = next(halves(sizes, stable_seed(self.seed, "layers")))
        fits = [
            self._fit_half(flat, labelled, half, number)
            for number, half in ((1, first), (2, second))
        ]
        embedder = dataclasses.replace(self.embedder, sets=self.sets)
        sides = [merge_and_embed(self.models, self.members, flat, self.strategy, embedder)]
        sides += [self._embed_merge(self._make_tensor_weights(fit, flat), embedder) for fit in fits]
        scores = [self._score_set(number, sides) for number in range(len(self.sets))]
        mean_fit = np.mean(fits, axis=0)
        gain = _measure_gain(scores, second, first)
        return Layers(self.blocks.names, mean_fit, self._make_tensor_weights(mean_fit, flat), gain)

    def _label_texts(self, number: int, flat: Array) -> LabelledTexts:
        encoder = self.forward.encoder
        return LabelledTexts(
            self.sets[number],
            [member[number] for member in self.members],
            flat,
            encoder,
            Prompting(self.embedder.prompt, encoder.prompts),
            self.embedder.max_length,
        )

    def _require_following(self, labelled: LabelledTexts) -> None:
        """Refuse an encoder whose embeddings do not depend on the parameters that it is given."""
        single_members = torch.eye(len(self.models)).unsqueeze(1).expand(-1, len(self.blocks), -1)
        with torch.no_grad():
            first_vectors, last_vectors = (
                self.forward.at(single_members[number])(labelled.queries[:PROBED]).numpy()
                for number in (0, -1)
            )
        error = np.abs(first_vectors - self.members[0][0].queries[0:PROBED]).max()
        largest_change = np.abs(first_vectors - last_vectors).max()
        if error >= 0.1 * largest_change:
            raise EmbergeError(
                f"'{self.models[0].name}' does not embed with the parameters that it is given for a forward "
                f"pass ({error:.2g} off, members are {largest_change:.2g} apart), so its layers "
                "cannot be weighed by gradients; leave 'layers' out"
            )

    def _fit_half(
        self, flat: Array, labelled: Sequence[LabelledTexts], units: Sequence[Places], number: int
    ) -> Array:
        work = self.embedder.workspace
        with work.part("fit", number, 2, "a half of the texts"):
            return fit_coefficients(
                flat,
                len(self.blocks),
                self.forward,
                labelled,
                units,
                seed=stable_seed(self.seed, f"layers {number}"),
                rounds=ROUNDS,
                work=work.work / f"layers-{number}",
                progress=lambda done: work.progress(done, ROUNDS, "rounds"),
            )

    def _make_tensor_weights(self, coefficients: Array, flat: Array) -> list[PerTensor]:
        return [
            self.blocks.weights(values.tolist(), float(flat_weight))
            for values, flat_weight in zip(coefficients.T, flat, strict=True)
        ]

    def _embed_merge(
        self, weights: Sequence[PerTensor], embedder: SetEmbedder
    ) -> Sequence[SideVectors]:
        inputs = member_inputs(self.models, weights)
        with merged_folder(inputs, self.strategy, embedder.workspace) as folder:
            return embedder.merged(folder, folder.name, "weighed by layer")

    def _score_set(self, number: int, merged: Sequence[Sequence[SideVectors]]) -> UnitScores:
        all_members = [*self.members, *merged]
        single_weightings = np.eye(len(all_members))
        vectors = [model[number] for model in all_members]
        return score_set(
            self.sets[number], vectors, single_weightings[len(self.members) :], single_weightings
        )


def _measure_gain(scores: Sequence[UnitScores], *unseen: Sequence[Places]) -> HeldOut:
    """Return the gain of the fits over equal layers, each measured on units that it was not fitted on.

    The first weighting has equal layers. The others are fits, one for each of the `unseen` parts of the
    units.
    """
    differences = [np.zeros((1, len(set_scores))) for set_scores in scores]
    for number, parts in enumerate(unseen, 1):
        for total, set_scores, units in zip(differences, scores, parts, strict=True):
            flat, layered = set_scores.select([0, number]).contributions(units)
            total[0, units] = layered - flat
    return mean_differences(differences)[0]
