"""``workbench partition TASK``: from a model to a registered partition.

A task says which of our models it is, and which fields of a spec its flags are. Nothing is written
before stages are found and were compared with the module.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.model_spec import FUNCTION, GPT_FAMILY, NAMED, T5_FAMILY
from workbench.core.spec import RunSpec, field_of
from workbench.partition import registered
from workbench.partition.analysis import analyse
from workbench.partition.graph import rows_of
from workbench.partition.methods import Ask, partition
from workbench.partition.registered import Registered
from workbench.runs.overrides import FLAGS, flag, make_spec, parse_setting, twice, words_of

if TYPE_CHECKING:
    from workbench.profile.profile import Profile
    from workbench.runs.store import Store

METHOD = "ftpipe"
"""The method that trains registered partitions."""
BERT_SIZES = {"family": "bert", "vocab": 30522, "seq": 384}
GPT_SIZES = {"family": GPT_FAMILY, "vocab": 50257, "seq": 1024}
DEPTHS = {"base": (12, 768, 12), "large": (24, 1024, 16), "xl": (48, 1600, 25)}


def _sized(name: str, **more: Any) -> dict[str, Any]:
    return dict(zip(("layers", "hidden", "heads"), DEPTHS[name], strict=True)) | more


@dataclass(frozen=True, kw_only=True)
class Task:
    """Models of a published task, and its own flags."""

    family: str
    """Where no model is named."""
    flags: Mapping[str, str]
    """Flag -> field of a spec."""
    models: Mapping[str, Mapping[str, Any]]
    """Published models -> fields."""
    usual: str
    """The model where neither one nor sizes are given."""
    fields: Mapping[str, Any] = field(default_factory=dict)


LENGTH = {"max_seq_length": "seq"}
BERTS = {
    "bert-base-uncased": _sized("base", **BERT_SIZES),
    "bert-large-uncased-whole-word-masking": _sized("large", **BERT_SIZES),
}
PICTURES = {"heads": 1, "seq": 32}
TASKS = {
    "t5": Task(
        family=T5_FAMILY, flags={**LENGTH, "answer_max_seq_length": "target_seq"},
        models={name: {"family": name} for name in NAMED if name.startswith("t5-")},
        usual="t5-small", fields={"tied": False},
    ),
    "gpt2": Task(
        family=GPT_FAMILY, flags={"block_size": "seq"},
        models={"gpt2": _sized("base", **GPT_SIZES), "gpt2-xl": _sized("xl", **GPT_SIZES)},
        usual="gpt2", fields={"tied": False},
    ),
    "bert_squad": Task(
        family="bert", flags=LENGTH, models=BERTS, usual="bert-large-uncased-whole-word-masking",
    ),
    "glue": Task(family="bert", flags=LENGTH, models=BERTS, usual="bert-base-uncased"),
    "vision": Task(
        family="resnet", flags={"crop": "seq"},
        models={
            "vgg16_bn": {"family": "vgg", "layers": 13, "hidden": 64, "vocab": 1000, **PICTURES},
            **{name: {"family": name} for name in NAMED if not name.startswith("t5-")},
            "resnet": {"family": "resnet", "layers": 8, "hidden": 16, "vocab": 10, **PICTURES},
        },
        usual="resnet",
    ),
}  # fmt: skip
"""Published task -> what it is here. ``package.module:function`` is a task, too."""
TIED, KEEPS = "stateless_tied", "no_recomputation"
SWITCHES = {
    TIED: "the head's matrix is the embedding (t5, gpt2)",
    KEEPS: "all stages keep their activations",
    "save_memory_mode": "measure units one at a time, which is done in any case",
    "sanity_check": "compare the stages with the module, which is done in any case",
    "lmhead": "the model has a head, which is so in any case (t5, gpt2)",
    "overwrite_profiles_cache": "measure again",
    "no_check": "do not compare the stages with the module",
    "force": "register although there is a partition of that name",
}
"""Flags without a value."""
FIELDS = (*FLAGS["model"], "target_seq", "decoder_layers", "text", "tokenizer", "device", "dtype")
REFUSED = {
    "n_iter": "a timing goes on until it is steady",
    "depth": "the nodes are the layers that workbench layers shows",
    "basic_blocks": "the nodes are the layers that workbench layers shows",
    "use_network_profiler": "layers are measured one at a time",
    "disable_op_profiling": "nodes are layers, and all of them are measured",
    "force_no_recomputation_scopes": "--no_recomputation is for all stages, or for none",
    "trace_on_gpu": "a model is traced without memory",
    "profiles_cache_name": "RESULTS/profiles has measurements by what decides them",
    "trace_cache_name": "a trace takes seconds and is made anew",
    "overwrite_trace_cache": "a trace takes seconds and is made anew",
    "generate_explicit_del": "no code is generated",
    "no_activation_propagation": "a stage hands on what later ones read",
    "penalize_non_tensors": "no stage sends anything but tensors",
    "dot": "the registered partition has the graph as JSON",
    "debug": "errors name their cause",
    "disable_autogenerated_name": "-o is the whole name",
    "no_analysis": "the analysis takes no time",
    "analysis_only": "the analysis is printed in any case",
    "analysis_batch_size": "the analysis is of the micro-batch of -b",
    "analysis_as_async_pipeline": "--async_pipeline says so",
    "precompute_masks": "the first stage makes masks, and hands them on",
    "precompute_attention_mask": "the first stage makes masks, and hands them on",
    "t5_task": "--text names the data", "train_file": "--text names the data",
    "train_data_file": "--text names the data", "doc_stride": "--text names the data",
    "do_lower_case": "--tokenizer says how texts become tokens",
}  # fmt: skip
"""Flag of the published compiler -> why it has no meaning for a task here."""
ALSO = {"profiles_cache_name": "--cp", "trace_cache_name": "--ct"}


def add_task_flags(add: Callable[..., None]) -> None:
    """Add the flags of tasks by `add` (name, short forms, options)."""
    add("partitioning_batch_size", "-b", "--batch", type=int, metavar="B", help="samples (4)")
    add("output_file", "-o", metavar="NAME", help="of the registered partition (default: made up)")
    add("model", metavar="MODEL", help="published model of the task")
    add("model_name_or_path", metavar="MODEL", help="as --model")
    add("results", type=Path, metavar="DIR", help="folder of measurements and partitions")
    told = "any other field of the model, such as tied=false; or of the spec"
    add("set", action="append", metavar="KEY=VALUE", help=told)
    owners: dict[str, list[str]] = {}
    for name, task in TASKS.items():
        for own in task.flags:
            owners.setdefault(own, []).append(name)
    for own, names in owners.items():
        meant = TASKS[names[0]].flags[own]
        add(own, type=int, metavar="N", help=f"{', '.join(names)}: {field_of(meant).about}")
    for name in FIELDS:
        about = field_of(name).about.replace("%", "%%")
        add(name, *(["-l"] if name == "layers" else []), metavar="VALUE", help=about)
    for name, about in SWITCHES.items():
        add(name, action="store_true", help=about)
    for name in REFUSED:
        add(name, *([ALSO[name]] if name in ALSO else []), nargs="*", help=argparse.SUPPRESS)


def task_flags() -> set[str]:
    """Names of the flags that only tasks have."""
    own = {name for task in TASKS.values() for name in task.flags}
    more = ("partitioning_batch_size", "output_file", "model", "model_name_or_path", "set")
    return own | {*FIELDS, *SWITCHES, *REFUSED, *more}


def spec_of(task: str, given: dict[str, Any]) -> RunSpec:
    """The spec whose layers are measured, of one rank; takes its flags out of `given`. Raises
    ValueError for an unknown task or model, and for flags that mean nothing."""
    for name, why in REFUSED.items():
        if given.pop(name, None) is not None:
            raise ValueError(f"--{name} has no meaning: {why}")
    known = TASKS.get(task)
    if known is None and not FUNCTION.fullmatch(task):
        raise ValueError(
            f"unknown task {task!r}; known: {', '.join(TASKS)}, or package.module:function"
        )
    changes: dict[str, Any] = {"family": task, "batch": 4, "method": METHOD}
    if "partitioning_batch_size" in given:
        changes["batch"] = given.pop("partitioning_batch_size")
    if given.pop(KEEPS, False):
        changes["activations"] = "keep"
    sizes = {n: field_of(n).parse(given.pop(n)) for n in FIELDS if n in given}
    for name, value in map(parse_setting, given.pop("set", ())):
        if name in sizes:
            raise twice(name, f"{flag(name)}", f"--set {name}={value}")
        sizes[name] = value
    named = [given.pop(n) for n in ("model", "model_name_or_path") if n in given]
    flags = {} if known is None else known.flags
    for name in sorted({n for each in TASKS.values() for n in each.flags} & given.keys()):
        if name not in flags:
            raise ValueError(f"--{name} has no meaning for {task}")
        sizes[flags[name]] = given.pop(name)
    if known is None and (named or given.keys() & {TIED, "lmhead"}):
        raise ValueError(f"{task} makes its model: leave out --model, --stateless_tied, --lmhead")
    if known is not None:
        if not named and not sizes.keys() & {*FLAGS["model"]}:
            named = [known.usual]
        for model in named:
            if model not in known.models:
                raise ValueError(
                    f"unknown model {model!r} of {task}; known: {', '.join(known.models)}"
                )
        changes |= {"family": known.family, **known.fields}
        changes |= known.models[named[0]] if named else {}
        given.pop("lmhead", None)
        if given.pop(TIED, False):
            if "tied" not in known.fields:
                raise ValueError(f"--{TIED} has no meaning for {task}, which ties nothing")
            changes["tied"] = True
    published = NAMED.get(changes["family"], {})
    return make_spec({"method": METHOD, "model": {}}, {**published, **changes, **sizes})


def name_of(task: str, model: str | None, ask: Ask) -> str:
    """The name that the published compiler would make up: model, devices, bandwidth, method."""
    asynchronous = "_async" if ask.cheap_last else ""
    what = (model or task).replace(":", ".")
    return f"{what}_{ask.devices}p_bw{ask.bandwidth:g}{asynchronous}_{ask.method}"


def register(
    task: str, given: dict[str, Any], ask: Ask, settings: Any, store: Store
) -> tuple[Registered, list[str]]:
    """Measure, partition, compare and register; returns the partition and the words of the run that
    trains it. Raises ValueError, and then has written nothing but measurements."""
    from workbench.methods.ftpipe.parts import cut_and_map, graph_of
    from workbench.model import make_model
    from workbench.profile.unit_costs import ProfiledSizes
    from workbench.runs.inputs import check_inputs
    from workbench.runs.resolve import resolve
    from workbench.training.cut_check import check_stages

    model_named = given.get("model") or given.get("model_name_or_path")
    force, fresh = given.pop("force", False), given.pop("overwrite_profiles_cache", False)
    unchecked, name = given.pop("no_check", False), given.pop("output_file", None)
    for same in ("save_memory_mode", "sanity_check"):
        given.pop(same, None)
    asked = spec_of(task, given)
    assert not given, given
    name = name or name_of(task, model_named, ask)
    if force:
        registered.path_of(store.root, name)
    else:
        registered.check_free(store.root, name)
    spec = resolve(asked)
    check_inputs([spec], store)
    model = make_model(spec.model, spec.seed)
    if ask.devices > model.num_units:
        raise ValueError(
            f"{ask.devices} devices are asked for; {task} has {model.num_units} layers that can be "
            f"apart, so give 1 to {model.num_units}"
        )
    profile = measured(spec, store, fresh=fresh)
    tied = [(unit, owner) for (unit, _), (owner, _) in model.tied().items()]
    sizes = ProfiledSizes({profile.microbatch: profile}, tied={})
    recompute = spec.activations != "keep"
    graph = graph_of(profile, sizes, recompute=recompute, tied=tied)
    found = partition(graph, ask, settings)
    cut, devices = (list(map(int, text.split())) for text in cut_and_map(found))
    ends = [sum(cut[:stage]) for stage in range(len(cut) + 1)]
    stages = [range(*pair) for pair in zip(ends, ends[1:], strict=False)]
    told = "not compared: --no_check" if unchecked else check_stages(spec.model, stages, spec.seed)
    made = registered.made(
        name=name, task=task, model=spec.model, samples=profile.microbatch, dtype=spec.dtype,
        ask=ask, settings=asdict(settings), costs=_origin(profile), graph=rows_of(graph),
        stage=found.stage, device=found.device, cut=cut, map=devices,
        analysis=analyse(graph, found, bandwidth=ask.bandwidth, cheap_last=ask.cheap_last),
        checked=told,
    )  # fmt: skip
    registered.write(store.root, made, force=force)
    run = asked.with_(ranks=ask.devices, partition=name)
    return made, ["workbench", "run", "-m", METHOD, *words_of(run, always="batch")]


def measured(spec: RunSpec, store: Store, *, fresh: bool) -> Profile:
    """The profile of the spec's layers on this machine, measured unless it is stored, or `fresh`.
    Raises ValueError where it cannot be."""
    from workbench.profile.store import profile_for, stored_profile
    from workbench.runs.planning import measure

    def tell(text: str) -> None:
        heard.append(text)
        print(text, file=sys.stderr)

    heard: list[str] = []
    found: list[Profile] = []
    if fresh and (old := stored_profile(spec, store.root)) is not None:
        Path(old.origin).unlink(missing_ok=True)
    measure([spec], store, tell, lambda *given: found.append(profile_for(*given)))
    if not found:
        raise ValueError(heard[-1] if heard else "the layers cannot be measured here")
    return found[0]


def _origin(profile: Profile) -> str:
    note = f"; {profile.note}" if profile.note else ""
    return f"{profile.hardware.source} on {profile.hardware.name}{note}"
