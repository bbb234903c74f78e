"""A step: a model with some of its layers."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from emberge import Artifact, ModelRef, Preflight, Problem, Step, Workspace
from emberge.model_folder import Checkpoint

COUNT = "num_hidden_layers"


@dataclass(frozen=True, kw_only=True)
class KeepLayers(Step):
    """Keep some layers of a model, to train a smaller one from (Sanh et al., 2019, arXiv:1910.01108).

    Example:
        small:
          keep_layers: {model: ./base, layers: [0, 2, 4]}
    """

    produces = "model"
    model: ModelRef
    layers: tuple[int, ...]
    """Numbers of the layers, from 0, in their new order."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        folder = context.model(self.model, weights=False)  # None: a step is yet to make it
        count = Checkpoint(folder).config.get(COUNT) if folder is not None else None
        for layer in self.layers:
            if count is not None and not 0 <= layer < count:
                yield context.problem(f"layer {layer}: the model has 0 to {count - 1}", "layers")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.merging import CopyJob, build_checkpoint
        from emberge.tensor_files import FileSource

        model = workspace.model(self.model)
        template = Checkpoint(model.folder)
        shutil.rmtree(workspace.folder)  # an earlier run may have been killed after the build
        with template.open_reader() as reader:
            jobs = [
                CopyJob(spec.with_name(new), FileSource(model.name, spec, reader))
                for name, spec in template.specs.items()
                for new in self.new_names(name)
            ]
            build_checkpoint(
                jobs,
                workspace.folder,
                template=template,
                files={
                    template.locate_in_trunk("config.json"): {
                        **template.config,
                        COUNT: len(self.layers),
                    }
                },
                key=f"{model.fingerprint} {self.layers}",
                provenance={"emberge": workspace.provenance},
                side_folder=workspace.work / "build",
                machine=workspace.machine,
            )
        return Artifact(kind="model", details={"layers": self.layers})

    def new_names(self, name: str) -> list[str]:
        """Return the names of a tensor in the result: none for a layer that is left out."""
        found = re.search(r"(?<=layer\.)\d+|(?<=layers\.)\d+", name)
        if found is None:
            return [name]
        before, after = name[: found.start()], name[found.end() :]
        places = [n for n, layer in enumerate(self.layers) if layer == int(found[0])]
        return [f"{before}{place}{after}" for place in places]
