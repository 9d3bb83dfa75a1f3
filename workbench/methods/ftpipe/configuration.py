"""A run from a configuration of the original system: JSON in its keys, as a spec of ours.

Pure translation of plain data: what has no meaning here is named, and what would train otherwise is
refused. Where names differ: the original's `1f1b` is asynchronous, its `gpipe` takes backward
passes last in, first out, its `bs_train` is a micro-batch. Options are those of the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from workbench.core.options import takes
from workbench.core.schema import read_as
from workbench.methods.ftpipe.orders import ASYNCHRONOUS
from workbench.model.named import NAMED

METHOD, NAG = "ftpipe", "nag_with_predictor"
UNUSED = """dataset logdir out_dir out_filename auto_file_name distributed_backend nprocs statistics
num_data_workers num_chunks flush_rate max_buffers keep_buffers_alive log_frequency model_type
cudnn_benchmark deterministic_mode verbose_comm checkpoints_save_dir nnodes master_port debug
checkpoints_save_name_prefix load_model_one_by_one mixture_or_task_name preproc_batch_size
precomputed_masks do_lower_case overwrite_cache dont_drop_last single_worker_eval_batch_size
data_propagator explicit_eval_cp eval_device"""
WHY = {
    "loss_multiplier": "losses are means", "patience": "no run stops early",
    "ddp_sim_num_gpus": "replicas are not simulated", "train_batches_limit": "give steps",
    "nesterov_set_for_last_partition": "all stages have one optimizer",
}  # fmt: skip
"""Keys that would change the training -> why nothing but their default is possible."""
ORDERS = {
    "1f1b": "async-1f1b", "pipedream": "pipedream", "virtual_stages_1f1b": "virtual-stages-1f1b",
    "seq": "seq", "gpipe": "gpipe-lifo", "sync_1f1b": "sync-1f1b",
}  # fmt: skip
OPTIMIZERS = {"sgd1": "sgd", "sgd2": "sgd-tf"} | {x: x for x in ("adam", "adamw", "adafactor")}
TASKS = ("cv_per_step_lr_scheduler", "cv", "lm", "squad", "glue", "t5", "cep")
LOCAL, SHARED, GLOBAL = "_local_grad_norm", "_local_grad_norm_prop", "_global_grad_norm"
NORMS = (LOCAL, SHARED, GLOBAL, AWARE := "_gap_aware")
OPTIONS = ("weight_stashing", "prediction", "gap_aware", "partition", "optimizer", "momentum",
           "nesterov", "stage_clip")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a configuration that has settings of its own."""

    type: str = ""
    policy: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    preproc_args: dict[str, Any] = field(default_factory=dict)


CONSTANT = Part(type="constant")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Keys that mean something here, as the original documents them."""

    model: str = ""
    model_name_or_path: str = ""
    data_dir: str = ""
    stage_to_device_map: list[int] = field(default_factory=list)
    trainer: Part = Part(type="cv")
    optimizer: Part = Part(type="adamw")
    lr_scheduler: Part | None = None
    weight_prediction: Part | None = None
    gap_aware: Part | None = None
    weight_stashing: bool = False
    work_scheduler: Literal[*ORDERS] = "1f1b"
    supremum_staleness: int | Literal["auto"] | None = None
    epochs: int = -1
    steps: int = -1
    step_every: int = 1
    bs_train: int = 128
    bs_test: int = 200
    test_batches_limit: int = -1
    seed: int = 42
    cpu: bool = False
    no_recomputation: bool = False
    save_checkpoints: bool = False
    save_checkpoint_every_x_steps: int | None = None
    max_seq_length: int | None = None
    answer_max_seq_length: int | None = None
    loss_multiplier: float = 1.0
    patience: int | None = None
    ddp_sim_num_gpus: int = 1
    train_batches_limit: int = -1
    nesterov_set_for_last_partition: bool = False


KEYS = frozenset({*UNUSED.split(), *(key.name for key in fields(Configuration))})


@dataclass(frozen=True)
class Translation:
    """Fields and options of a spec by their names, and what was left out, for people."""

    values: dict[str, Any]
    epochs: int | None  # in the place of steps, which the data then count
    notes: list[str]


def translate(given: Mapping[str, Any]) -> Translation:
    """What a configuration trains, as a spec's fields. Raises ValueError naming the key whose value
    this system cannot train."""
    unused = sorted({*given} & {*UNUSED.split()})
    own = {key: value for key, value in given.items() if key not in unused}
    config: Configuration = read_as(Configuration, own, "the configuration")
    for key in (key for key in fields(config) if key.name in WHY):
        if (value := getattr(config, key.name)) != key.default:
            told = f"{WHY[key.name]}: leave it at {key.default}"
            raise ValueError(f"{key.name} is {value!r}; {told}")
    epochs, steps, every = config.epochs, config.steps, config.step_every
    if (epochs > 0) == (steps > 0):
        raise ValueError(f"epochs is {epochs} and steps is {steps}; one is above 0, the other -1")
    order = ORDERS[config.work_scheduler]
    values = {
        "method": METHOD, "eval_epochs": 1, "microbatches": every, "seed": config.seed,
        "batch": config.bs_train * every, "stage_order": order, "clip": None,
        "activations": "keep" if config.no_recomputation else "recompute",
        "weight_stashing": config.weight_stashing,
    }  # fmt: skip
    if name := config.model_name_or_path:
        values |= NAMED.get(name, {"family": name})
    devices = sorted({*config.stage_to_device_map})
    if config.test_batches_limit >= 0:
        values["eval_samples"] = max(1, config.test_batches_limit * config.bs_test)
    asked = {
        "steps": max(0, steps), "text": config.data_dir, "seq": config.max_seq_length,
        "target_seq": config.answer_max_seq_length, "device": "cpu" * config.cpu,
        "supremum": {"auto": 0}.get(config.supremum_staleness, config.supremum_staleness),
        "save_every": config.save_checkpoints and config.save_checkpoint_every_x_steps,
        "ranks": len(devices), "partition": config.model, "gap_aware": config.gap_aware is not None,
        "map": "" if config.model  # a registered partition has its own
        else " ".join(str(devices.index(device)) for device in config.stage_to_device_map),
    }  # fmt: skip
    values |= {name: value for name, value in asked.items() if value}
    values |= _optimizer(config) | _rates(config.lr_scheduler or CONSTANT)
    values |= {name: value for name, value in _trainer(config.trainer, order).items() if value}
    predicted = (config.weight_prediction or Part()).args
    if config.weight_prediction:
        kind = predicted.get("pred_type", "msnag")
        values["prediction"] = "nag" if predicted.get(NAG) and kind == "msnag" else kind
    for name in OPTIONS:
        if not values.setdefault(name, None):
            del values[name]
        elif not takes(METHOD, name):
            raise ValueError(f"{name} is {values[name]!r}; {METHOD} has no such option yet")
    unused += ["gap_aware.policy"] * bool(config.gap_aware and config.gap_aware.policy)
    unused += ["lr_scheduler.preproc_args"] * bool((config.lr_scheduler or CONSTANT).preproc_args)
    unused += [f"weight_prediction.{name}" for name in predicted if name not in ("pred_type", NAG)]
    notes = [f"left out, without a meaning here: {', '.join(unused)}"] if unused else []
    if order != config.work_scheduler:
        notes.append(f"work_scheduler {config.work_scheduler} is called {order} here")
    return Translation(values, epochs if epochs > 0 else None, notes)


def _optimizer(config: Configuration) -> dict[str, Any]:
    asked = config.optimizer
    if asked.type not in OPTIMIZERS:
        raise ValueError(f"optimizer.type is {asked.type!r}; known: {', '.join(OPTIMIZERS)}")
    values, names = dict(asked.args), ("lr", "eps", "weight_decay", "momentum", "nesterov", "betas")
    if unknown := sorted(values.keys() - {*names}):
        raise ValueError(f"optimizer.args has {unknown[0]!r}; known: {', '.join(names)}")
    if "betas" in values:
        values |= dict(zip(("beta1", "beta2"), values.pop("betas"), strict=True))
    return values if asked.type == "adamw" else values | {"optimizer": OPTIMIZERS[asked.type]}


def _rates(asked: Part) -> dict[str, Any]:
    """Rates, which end at 0 where they fall."""
    kind, names = asked.type.lower(), ("num_warmup_steps", "num_training_steps")
    shape = next((name for name in ("constant", "linear", "cosine") if name in kind), None)
    if shape is None:
        raise ValueError(f"lr_scheduler.type is {kind!r}; it must be constant, linear or cosine")
    counts = zip(("warmup_steps", "lr_decay_steps"), map(asked.args.get, names), strict=True)
    found = {name: count for name, count in counts if isinstance(count, int) and count > 0}
    return {"lr_schedule": shape, "min_lr": 0.0, **found}


def _trainer(asked: Part, order: str) -> dict[str, Any]:
    """Clipping, which trainers have in their names."""
    suffix, why = next((norm for norm in NORMS if asked.type.endswith(norm)), ""), ""
    if asked.type.removesuffix(suffix) not in TASKS:
        why = f"known are {', '.join(TASKS)}, each alone or with {', '.join(NORMS)}"
    elif suffix == GLOBAL and order in ASYNCHRONOUS:
        why = (
            f"in the asynchronous order {order} stages have no step in common whose norm could be "
            f"taken; use {LOCAL}, or a work_scheduler of gpipe, sync_1f1b or seq"
        )
    elif suffix in (LOCAL, SHARED) and order not in ASYNCHRONOUS:
        why = f"in the order {order} the norm is the whole model's; use {GLOBAL}"
    if why:
        raise ValueError(f"trainer.type is {asked.type!r}; {why}")
    if suffix in ("", AWARE):
        return {"gap_aware": bool(suffix)}
    own = "local-prop" if suffix == SHARED else ""
    return {"clip": asked.args.get("max_grad_norm", 1.0), "stage_clip": own}
