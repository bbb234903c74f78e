"""Merging: every method as a strategy or transform, and the steps that merge models and adapters."""

from __future__ import annotations

from pathlib import Path

from emberge import make_hook
from emberge.plugin_verbs import Verb, VerbOption

register_merge_transforms = make_hook(
    drop="emberge_merge.methods.sparse.drop:Drop",
    drop_by_rank="emberge_merge.methods.sparse.drop_by_rank:DropByRank",
    energy_weights="emberge_merge.methods.sparse.energy_weights:EnergyWeights",
    group="emberge_merge.methods.group:Group",
    rescale="emberge_merge.methods.sparse.rescale:Rescale",
    select_variance="emberge_merge.methods.sparse.select_variance:SelectVariance",
    trim="emberge_merge.methods.sparse.trim:Trim",
    trim_outliers="emberge_merge.methods.sparse.trim:TrimOutliers",
    unanimous="emberge_merge.methods.sparse.unanimous:Unanimous",
)
register_merge_strategies = make_hook(
    breadcrumbs="emberge_merge.methods.named_chains:BREADCRUMBS",
    breadcrumbs_ties="emberge_merge.methods.named_chains:BREADCRUMBS_TIES",
    dare_linear="emberge_merge.methods.named_chains:DARE_LINEAR",
    dare_ties="emberge_merge.methods.named_chains:DARE_TIES",
    della="emberge_merge.methods.named_chains:DELLA",
    della_linear="emberge_merge.methods.named_chains:DELLA_LINEAR",
    fisher="emberge_merge.methods.fisher:Fisher",
    iso_c="emberge_merge.methods.spectral:IsoC",
    karcher="emberge_merge.methods.spherical.mean_directions:Karcher",
    keep_base="emberge_merge.methods.keep_base:KeepBase",
    linear="emberge_merge.methods.weighted_sums:Linear",
    model_stock="emberge_merge.methods.spherical.model_stock:ModelStock",
    multi_slerp="emberge_merge.methods.spherical.mean_directions:MultiSlerp",
    nuslerp="emberge_merge.methods.spherical.slerp:Nuslerp",
    passthrough="emberge_merge.methods.weighted_sums:Passthrough",
    regmean="emberge_merge.methods.regmean:Regmean",
    sce="emberge_merge.methods.named_chains:SCE",
    sce_unanimous="emberge_merge.methods.named_chains:SCE_UNANIMOUS",
    sequential_slerp="emberge_merge.methods.spherical.slerp:SequentialSlerp",
    sign_consensus="emberge_merge.methods.sparse.sign_consensus:SignConsensus",
    slerp="emberge_merge.methods.spherical.slerp:Slerp",
    task_arithmetic="emberge_merge.methods.weighted_sums:TaskArithmetic",
    ties="emberge_merge.methods.named_chains:TIES",
    tsv_m="emberge_merge.methods.spectral:TsvM",
    wudi="emberge_merge.methods.spectral:Wudi",
)
register_steps = make_hook(
    merge="emberge_merge.steps.merge:Merge",
    merge_adapters="emberge_merge.steps.merge_adapters:MergeAdapters",
    extract_lora="emberge_merge.steps.extract_lora:ExtractLora",
)
register_verbs = make_hook(
    merge=Verb(
        group="start",
        summary="merge models into one folder, or as a mergekit YAML asks",
        examples="emberge merge ./a ./b --strategy linear --out merged\n"
        "emberge merge ./a ./b --strategy slerp --set t=0.3 --out merged\n"
        "emberge merge ./a ./b --set missing=average_present --out merged\n"
        "emberge merge me/legal me/faq --base me/base --strategy ties --set density=0.5 --out merged\n"
        "emberge merge ./a ./b ./c --strategy linear --weight 0.5,0.3,0.2 --out merged\n"
        "emberge merge mergekit.yml --out merged",
        options=(
            VerbOption(
                "models",
                "./folder, owner/name@revision or pkg:module; or one mergekit YAML",
                "MODEL",
                count="*",
            ),
            VerbOption("--strategy", "default: that of the step `merge`", "NAME"),
            VerbOption("--out", "the merged model", "DIR", Path, required=True),
            VerbOption("--base", "the models' common ancestor", "MODEL"),
            VerbOption("--template", "gives all but weights; default: the first model", "MODEL"),
            VerbOption("--weight", "one a model: 0.5,0.3,0.2", "W", repeated=True),
            VerbOption(
                "--set",
                "of the strategy or of the step, which `emberge show merge` lists; may be given "
                "several times",
                "option=value",
                repeated=True,
                stored_as="overrides",
            ),
            VerbOption("--dtype", "of the merged weights", "NAME"),
        ),
        run="emberge_merge.one_merge:run_verb",
        machine=True,
        resumes=True,
    )
)
