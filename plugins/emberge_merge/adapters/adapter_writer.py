"""Writing of an adapter as a folder that peft can read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import CheckpointError
from emberge.files import writing
from emberge.model_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from emberge.tensor_names import PEFT_PREFIX
from torch import Tensor

from emberge_merge.adapters.low_rank import LowRankFactors

# Names of modules that are tables of embeddings.
_TABLE_NAME = re.compile(r"(?:embeddings?|embed_tokens|embed_in|wte|wpe|shared)$")


@dataclass
class AdapterParts:
    """The tensors of an adapter by the backbone's names; if `transposed`, the layers store [in, out].

    `names` are those of all tensors of the backbone, since a module that is saved whole needs all of its
    tensors.
    """

    names: frozenset[str]
    transposed: bool = False
    factors: dict[str, LowRankFactors] = field(default_factory=dict)
    """Factors of the changes, by module."""
    changed_names: set[str] = field(default_factory=set)
    """Changed tensors whose change is no product; they are kept whole."""

    def list_saved_modules(self) -> list[str]:
        """Return the names of the modules that are kept whole; peft compares them with the ends of names.

        Raises:
            CheckpointError: if a module would have to be both kept whole and adapted.
        """
        changed_modules = {
            _strip_weight(name) for name in self.changed_names if not name.endswith(".bias")
        }
        if not changed_modules:
            return []
        all_modules = {_strip_weight(name) for name in self.names}
        saved = {m for m in all_modules if m.endswith(tuple(changed_modules))}
        for module in saved:
            inner = next((m for m in self.factors if f"{m}.".startswith(f"{module}.")), None)
            if inner is not None or not module:
                raise CheckpointError(
                    f"{inner or module}: the change cannot be an adapter's, as '{module}' would have to be "
                    "saved whole as well; keep the whole model"
                )
        return sorted(changed_modules)

    def list_whole_names(self) -> list[str]:
        """Return the names of the tensors that are kept whole."""
        saved_modules = tuple(self.list_saved_modules())
        inside = {
            n for n in self.names if saved_modules and _strip_weight(n).endswith(saved_modules)
        }
        return sorted(inside | self.changed_names)

    def write(
        self,
        folder: Path,
        whole_tensors: Mapping[str, Tensor],
        base: str,
        metadata: Mapping[str, str],
    ) -> None:
        """Write adapter_model.safetensors and adapter_config.json.

        Raises:
            CheckpointError: if no matrix changed, or the disk cannot be written.
        """
        from safetensors.torch import save_file

        if not self.factors:
            raise CheckpointError(
                "no matrix of the model differs from its base's; there is nothing for an adapter to hold"
            )
        tensors = dict(self._list_tensors(whole_tensors))
        with writing(folder, "the adapter"):
            # One entry alone, as safetensors writes several in an order of chance.
            save_file(tensors, folder / ADAPTER_WEIGHTS, metadata=dict(metadata))
            text = json.dumps(self._build_config(base), indent=2, ensure_ascii=False)
            (folder / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")

    def _list_tensors(self, whole_tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        for module, product in self.factors.items():
            if _TABLE_NAME.search(module):
                # A table stores [tokens, features]: the product of an adapter's factors is its transpose.
                yield f"{PEFT_PREFIX}{module}.lora_embedding_A", product.b.T.contiguous()
                yield f"{PEFT_PREFIX}{module}.lora_embedding_B", product.a.T.contiguous()
            else:
                a, b = (product.b.T, product.a.T) if self.transposed else (product.a, product.b)
                yield f"{PEFT_PREFIX}{module}.lora_A.weight", a.contiguous()
                yield f"{PEFT_PREFIX}{module}.lora_B.weight", b.contiguous()
        for name, tensor in whole_tensors.items():
            module, last = _strip_weight(name), name.rpartition(".")[2]
            inner = f"{module}.base_layer" if module in self.factors else module
            yield f"{PEFT_PREFIX}{inner}.{last}", tensor.contiguous()

    def _build_config(self, base: str) -> dict[str, Any]:
        # Threads add factors in any order; of equally common ranks, that of the first name counts.
        ranks = {module: factors.rank for module, factors in sorted(self.factors.items())}
        most_common_rank = Counter(ranks.values()).most_common(1)[0][0]
        rank_by_pattern = {
            re.escape(m): rank for m, rank in ranks.items() if rank != most_common_rank
        }
        biases = any(name.endswith(".bias") for name in self.changed_names)
        # alpha = r: the factors are the whole change, and no rule of scaling can misread them.
        return {
            "peft_type": "LORA",
            "task_type": "FEATURE_EXTRACTION",
            "base_model_name_or_path": base,
            "inference_mode": True,
            "r": most_common_rank,
            "lora_alpha": most_common_rank,
            "rank_pattern": rank_by_pattern,
            "alpha_pattern": rank_by_pattern,
            "target_modules": list(ranks),
            "modules_to_save": self.list_saved_modules() or None,
            "bias": "all" if biases else "none",
            "fan_in_fan_out": self.transposed,
            "use_rslora": False,
            "use_dora": False,
            "lora_dropout": 0.0,
            "init_lora_weights": True,
        }


def _strip_weight(name: str) -> str:
    """Return the module name of a parameter: `layers.0.mlp` for `layers.0.mlp.weight`."""
    return name.rpartition(".")[0]
