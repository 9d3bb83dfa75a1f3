"""Results of a run in the original system's form: ``{"config": ..., "results": ...}``."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.core.record import Evaluation, RunRecord, strict
from workbench.methods.ftpipe.configuration import OPTIMIZERS, ORDERS


def results_of(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """Name of the file, and what is in it; lists have a value an epoch, of a run that has not come
    to the end of one, a single value. Lists of tests are those of the last evaluation of each
    epoch; losses are means of steps."""
    spec = record.spec
    model, options = spec["model"], spec["options"]
    epochs = _epochs(record)
    seconds = [sum(record.step_seconds[first:end]) for first, end, _ in epochs]
    tests = [found for *_, found in epochs if found]
    config = {
        "model": options.get("partition") or model["family"],
        "dataset": Path(spec["text"]).name,
        "bs_train": spec["batch"] // spec["microbatches"],
        "step_every": spec["microbatches"],
        "seed": spec["seed"],
        "steps": spec["steps"],
        "epochs": -1,
        "work_scheduler": _original(ORDERS, options["stage_order"]),
        "supremum_staleness": options["supremum"] or None,
        "stage_to_device_map": [int(rank) for rank in options["map"].split()],
        "weight_stashing": bool(options.get("weight_stashing")),
        "weight_prediction": _prediction(options),
        "gap_aware": bool(options.get("gap_aware")),
        "no_recomputation": spec["activations"] == "keep",
        "optimizer": {
            "type": _original(OPTIMIZERS, options.get("optimizer", "adamw")),
            "args": {name: spec[name] for name in ("lr", "weight_decay", "eps")},
        },
        "total_epoch_times": seconds,
        "train_epochs_times": seconds,
        "exp_total_time": record.seconds,
    }
    results: dict[str, Any] = {
        "num_epochs": len(epochs),
        "train_loss": [fmean(map(float, record.losses[first:end])) for first, end, _ in epochs],
        "test_loss": [found["loss"] for found in tests],
    }
    if any("accuracy" in found for found in tests):
        results["test_acc"] = [100 * found["accuracy"] for found in tests]
    if any("perplexity" in found for found in tests):
        results["test_ppl"] = [found["perplexity"] for found in tests]
    if any("exact" in found for found in tests):
        results["squad_results"] = {
            str(number): {"exact": found["exact"], "f1": found["f1"]}
            for number, found in enumerate(tests)
        }
    return _name(config), strict({"config": config, "results": results})


def _epochs(record: RunRecord) -> list[tuple[int, int, Evaluation | None]]:
    """Steps of each epoch, from one to before another, and its last evaluation. Evaluations know
    how many steps an epoch has; without any, all steps are one."""
    steps = len(record.losses)
    if not steps:
        return []
    last = record.evaluations[-1] if record.evaluations else None
    each = max(1.0, last["step"] / last["epoch"] if last else steps)
    ends = [round(each * (number + 1)) for number in range(int(steps / each))]
    if not ends or ends[-1] < steps:
        ends.append(steps)
    found = []
    for first, end in zip([0, *ends], ends, strict=False):
        own = [one for one in record.evaluations if first < one["step"] <= end]
        found.append((first, end, own[-1] if own else None))
    return found


def _original(names: dict[str, str], ours: str) -> str:
    return next((name for name, mapped in names.items() if mapped == ours), ours)


def _prediction(options: dict[str, Any]) -> dict[str, Any] | None:
    kind = options.get("prediction", "none")
    if kind == "none":
        return None
    nag = kind == "nag"
    args = {"pred_type": "msnag" if nag else kind, "nag_with_predictor": nag}
    return {"type": args["pred_type"], "args": args}


def _name(config: dict[str, Any]) -> str:
    """As the original names its files."""
    every, parts = config["step_every"], ["results", config["model"], config["dataset"]]
    if config["work_scheduler"] == "gpipe":
        parts.append("gpipe")
    else:
        prediction = config["weight_prediction"]
        parts.append(prediction["args"]["pred_type"] if prediction else "stale")
        parts += ["ws"] * config["weight_stashing"] + ["ga"] * config["gap_aware"]
    parts += [f"bs_{config['bs_train'] * every}", f"se_{every}", f"seed_{config['seed']}"]
    text = "_".join(parts)
    return "".join(sign if sign.isalnum() or sign in "_.-" else "-" for sign in text) + ".json"
