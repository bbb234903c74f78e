"""An adapter's names in its base: classes and wrappers put different words before them."""

from __future__ import annotations

import re

from emberge.errors import CheckpointError
from emberge.model_folder import Checkpoint, Names, usual_name

__all__ = ["AdapterNames"]

# How a whole SentenceTransformer numbers its modules.
_MODULE = re.compile(r"(\d+)\.(?:auto_model\.|model\.)?(?=\D)")


class AdapterNames:
    """Finds the base's tensor for each of an adapter's names.

    An adapter may have been trained on another class than the base is stored as (`model.layers.0…` for
    `layers.0…`), or inside a SentenceTransformer (`0.auto_model.encoder…`): whatever precedes the base's
    own name is left out, if it is the same for all.
    """

    def __init__(self, names: Names, checkpoint: Checkpoint, label: str) -> None:
        self._label, self._base = label, checkpoint.folder.name
        self._modules = checkpoint.modules
        self._known = {usual_name(spec.name): name for name, spec in names.specs.items()}
        self._known.update({name: name for name in names.specs})
        self._leads: dict[str, str] = {}

    def of(self, name: str) -> str | None:
        """Return the canonical name of a tensor; None where the base has none."""
        name = usual_name(self._in_trunk(name))
        words = name.split(".")
        for start in range(len(words)):
            found = self._known.get(".".join(words[start:]))
            if found is not None:
                self._leads.setdefault("".join(f"{w}." for w in words[:start]), name)
                return found
        return None

    def beside(self, name: str) -> str:
        """Return the name of a tensor that the base lacks, without the prefix of all names."""
        name = self._in_trunk(name)
        return name.removeprefix(max(self._leads, key=len, default=""))

    def require_one_prefix(self) -> None:
        """Refuse names under several prefixes.

        Raises:
            CheckpointError: naming two of them.
        """
        longest = max(self._leads, key=len, default="")
        for lead, name in self._leads.items():
            if not longest.startswith(lead):
                raise CheckpointError(
                    f"{self._label}: '{name}' and '{self._leads[longest]}' lie in different parts of the "
                    f"model that it was trained on, and {self._base} has one; name the base of the adapter"
                )

    def _in_trunk(self, name: str) -> str:
        """Return a name without a SentenceTransformer's number of the module; later ones get their folder."""
        found = _MODULE.match(name)
        if found is None or int(found[1]) >= max(1, len(self._modules)):
            return name
        number, rest = int(found[1]), name[found.end() :]
        return rest if number == 0 else f"{self._modules[number].path}.{name[len(found[1]) + 1 :]}"
