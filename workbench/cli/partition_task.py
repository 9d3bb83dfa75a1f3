"""``workbench partition TASK``: from a model to a registered partition.

A task says which of our models it is, and which fields of a spec its flags are. Nothing is written
before stages are found and were compared with the module.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.division import packs_of
from workbench.core.model_spec import FUNCTION, GPT_FAMILY, T5_FAMILY, VIT, WIDE_RESNET
from workbench.core.spec import RunSpec, field_of
from workbench.model.named import NAMED
from workbench.partition import registered
from workbench.partition.analysis import analyse
from workbench.partition.graph import Graph, rows_of
from workbench.partition.methods import Ask, Partition, partition
from workbench.partition.registered import Registered
from workbench.runs.overrides import FLAGS, flag, make_spec, parse_setting, twice, words_of

if TYPE_CHECKING:
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
COMPILED = (WIDE_RESNET, VIT)
"""Families of pictures whose published models the published compiler knew."""
TASKS = {
    "t5": Task(
        family=T5_FAMILY, flags={**LENGTH, "answer_max_seq_length": "target_seq"},
        models={n: {"family": n} for n, each in NAMED.items() if each["family"] == T5_FAMILY},
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
            **{n: {"family": n} for n, each in NAMED.items() if each["family"] in COMPILED},
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
_WHY = {
    "nodes are measured one at a time, until timings are steady":
        "n_iter use_network_profiler disable_op_profiling trace_on_gpu",
    "--no_recomputation is for all stages, or for none": "force_no_recomputation_scopes",
    "RESULTS has measurements by what decides them, and a trace is made anew":
        "profiles_cache_name trace_cache_name overwrite_trace_cache",
    "no code is generated, and a stage hands on what later ones read":
        "generate_explicit_del no_activation_propagation penalize_non_tensors",
    "the analysis is of the micro-batch of -b, printed and registered in any case":
        "no_analysis analysis_only analysis_batch_size analysis_as_async_pipeline dot debug",
    "-o is the whole name": "disable_autogenerated_name",
    "the first stage makes masks": "precompute_masks precompute_attention_mask",
    "--text and --tokenizer say how data is read":
        "t5_task train_file train_data_file doc_stride do_lower_case",
}  # fmt: skip
REFUSED = {flag: why for why, flags in _WHY.items() for flag in flags.split()}
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
    for own, meant in {k: v for task in TASKS.values() for k, v in task.flags.items()}.items():
        names = ", ".join(name for name, task in TASKS.items() if own in task.flags)
        add(own, type=int, metavar="N", help=f"{names}: {field_of(meant).about}")
    for name in FIELDS:
        about = field_of(name).about.replace("%", "%%")
        add(name, *(["-l"] if name == "layers" else []), metavar="VALUE", help=about)
    told = "nodes are calls, not layers, and modules of these classes are one"
    add("basic_blocks", nargs="+", metavar="CLASS", help=told)
    add("depth", type=int, metavar="N", help="nodes are calls, and modules below N others are one")
    for name, about in SWITCHES.items():
        add(name, action="store_true", help=about)
    for name in REFUSED:
        add(name, *([ALSO[name]] if name in ALSO else []), nargs="*", help=argparse.SUPPRESS)


def task_flags() -> set[str]:
    """Names of the flags that only tasks have."""
    own = {name for task in TASKS.values() for name in task.flags}
    more = "basic_blocks depth partitioning_batch_size output_file model model_name_or_path set"
    return own | {*FIELDS, *SWITCHES, *REFUSED, *more.split()}


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
    trains it, or none. Raises ValueError, and then has written nothing but measurements."""
    from workbench.profile.machine import this_machine
    from workbench.runs.inputs import check_inputs
    from workbench.runs.resolve import resolve

    model = given.get("model") or given.get("model_name_or_path")
    calls = {key: given.pop(key) for key in ("basic_blocks", "depth") if key in given}
    force, fresh = given.pop("force", False), given.pop("overwrite_profiles_cache", False)
    unchecked, name = given.pop("no_check", False), given.pop("output_file", None)
    for same in ("save_memory_mode", "sanity_check"):
        given.pop(same, None)
    asked = spec_of(task, given)
    assert not given, given
    name = name or name_of(task, model, ask)
    (registered.path_of if force else registered.check_free)(store.root, name)
    spec = resolve(asked)
    check_inputs([spec], store)
    if calls:
        graph, compare, sets_of = _of_calls(spec, ask, store, fresh, **calls)
    else:
        graph, compare, sets_of = _of_layers(spec, ask, store, fresh)
    found = partition(graph, ask, settings)
    sets = sets_of(found)
    counts = Counter(found.stage.values())
    cut = [] if calls else [counts[stage] for stage in range(len(found.stage_to_device))]
    made = registered.made(
        name=name, task=task, model=spec.model, samples=spec.microbatch, dtype=spec.dtype,
        ask=ask, settings=asdict(settings), costs=f"measured on {this_machine(spec.device).name}",
        graph=rows_of(graph), stage=found.stage, device=found.device, cut=cut,
        map=found.stage_to_device,
        calls=sets, checked="not compared: --no_check" if unchecked else compare(found),
        analysis=analyse(graph, found, bandwidth=ask.bandwidth, cheap_last=ask.cheap_last),
    )  # fmt: skip
    registered.write(store.root, made, force=force)
    run = asked.with_(ranks=ask.devices, partition=name)
    trains = ["workbench", "run", "-m", METHOD, *words_of(run, always="batch")]
    return made, trains if cut or sets else []


def _of_layers(
    spec: RunSpec, ask: Ask, store: Store, fresh: bool
) -> tuple[Graph, Callable[[Partition], str], Callable[[Partition], str]]:
    """The graph of a model's layers, what compares a partition with the module, and what tells the
    calls of its stages, of which layers have none."""
    from workbench.methods.ftpipe.parts import cut_and_map, graph_of
    from workbench.methods.ftpipe.stage_sizes import sizes_of
    from workbench.model import make_model
    from workbench.profile.store import profile_for, stored_profile
    from workbench.training.cut_check import check_stages

    model = make_model(spec.model, spec.seed)
    _check_devices(ask, model.num_units, "layers")
    if fresh and (old := stored_profile(spec, store.root)) is not None:
        Path(old.origin).unlink(missing_ok=True)
    profile = measured(spec, store, profile_for)
    tied = [(unit, owner) for (unit, _), (owner, _) in model.tied().items()]
    sizes = sizes_of(profile)
    graph = graph_of(profile, sizes, recompute=spec.activations != "keep", tied=tied)

    def compare(found: Partition) -> str:
        cut = map(int, cut_and_map(found)[0].split())
        return check_stages(spec.model, packs_of([*cut]), spec.seed)

    return graph, compare, lambda _: ""


def _of_calls(
    spec: RunSpec, ask: Ask, store: Store, fresh: bool, *,
    basic_blocks: Sequence[str] = (), depth: int | None = None,
) -> tuple[Graph, Callable[[Partition], str], Callable[[Partition], str]]:  # fmt: skip
    """As `_of_layers`, of a module's calls."""
    from workbench.methods.ftpipe.operator_graph import Traced
    from workbench.training.cut_check import check_order, check_stages

    traced, keeps = Traced(spec, basic=basic_blocks, depth=depth), spec.activations == "keep"
    _check_devices(ask, len(traced.operators), "calls")

    def graph_of(*_: Any) -> Graph:
        return traced.graph(store.root, _tell, recompute=not keeps, fresh=fresh)

    def sets_of(found: Partition) -> str:
        return traced.sets(found.stage)

    def compare(found: Partition) -> str:
        told = check_order(traced.module, traced.inputs, traced.operators, found.stage)
        if not (sets := sets_of(found)):
            return told
        ones = packs_of([1] * len(found.stage_to_device))
        return f"{told}; {check_stages(replace(spec.model, calls=sets), ones, spec.seed)}"

    return measured(spec, store, graph_of), compare, sets_of


def _check_devices(ask: Ask, count: int, what: str) -> None:
    if not 1 <= ask.devices <= count:
        raise ValueError(
            f"{ask.devices} devices are asked for; the model has {count} {what} that can be apart, "
            f"so give 1 to {count}"
        )


def measured(spec: RunSpec, store: Store, timing: Callable[..., Any]) -> Any:
    """What `timing` gives of the spec while this process holds its device. Raises ValueError where
    it cannot be measured."""
    from workbench.runs.planning import measure

    heard: list[str] = []

    def tell(text: str) -> None:
        heard.append(text)
        _tell(text)

    found: list[Any] = []
    measure([spec], store, tell, lambda *given: found.append(timing(*given)))
    if not found:
        raise ValueError(heard[-1] if heard else "nothing can be measured here")
    return found[0]


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
