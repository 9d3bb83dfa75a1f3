"""Plain training, written as anybody would: the judge of every method's exactness.

It shares the model's arithmetic and the data with the methods, and nothing else: torch's AdamW with
decay groups, torch's clipping, one module, one device.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.func import functional_call

from workbench.core.model_spec import DOCUMENTS, ModelSpec
from workbench.core.options import takes
from workbench.core.spec import RunSpec
from workbench.model import make_model
from workbench.model.whole import make_whole
from workbench.profile.profile import Hardware, Profile, UnitCost
from workbench.runtime.memory.storage import DTYPES
from workbench.runtime.passes.bundle import Boundary
from workbench.training.run import load_batches

MODEL = ModelSpec(layers=5, hidden=32, heads=4, seq=16, vocab=256, dropout=0.1, tied=True)


def spec_for(**changes) -> RunSpec:
    """20 steps with everything on: dropout, decay groups, a learning-rate schedule with warm-up."""
    values = {
        "method": "stronghold",
        "model": MODEL,
        "text": __file__,  # gathering the standard library's sources costs more than the 20 steps
        "batch": 4,
        "steps": 20,
        "device": "cpu",
        "lr": 1e-3,
        "min_lr": 1e-4,
        "warmup_steps": 3,
        "weight_decay": 0.1,
        "clip": 0.5,
        "activations": "recompute",
    }
    if takes(changes.get("method", values["method"]), "clipping"):
        values["clipping"] = "speculate"  # of small models a planner would rather wait
    return RunSpec.of(**{**values, **changes})


def train(
    spec: RunSpec,
    dtype: torch.dtype = torch.float32,
    norms: list[float] | None = None,
    gradients: dict[str, Tensor] | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of every step and the final parameters; to `norms` each step's is added, to
    `gradients` those of the last step. With bf16 passes have rounded weights, the optimizer fp32.
    """
    device = spec.device
    model = make_model(spec.model)
    low = dtype == torch.bfloat16
    net = make_whole(model, seed=spec.seed, device=device).to(torch.float32 if low else dtype)

    def rounded() -> dict[str, Tensor]:
        """Weights as passes have them."""
        return {name: p.bfloat16() for name, p in net.named_parameters()} if low else {}

    decays = {
        model.state_name(unit, name): model.decays(unit, name)
        for unit in range(model.num_units)
        for name in model.shapes(unit)
    }
    groups = [
        {
            "params": [p for n, p in net.named_parameters() if decays[n] == decaying],
            "weight_decay": spec.weight_decay if decaying else 0.0,
        }
        for decaying in (True, False)
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, foreach=False
    )
    batches = load_batches(spec, model)
    losses = []
    for step in range(spec.steps):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate(step)
        optimizer.zero_grad()
        tokens, targets = (t.to(device) for t in batches.batch(step))
        samples = batches.samples(step)
        total = 0.0
        for micro in range(spec.microbatches):
            rows = slice(micro * spec.microbatch, (micro + 1) * spec.microbatch)
            given = (tokens[rows], targets[rows])
            loss = functional_call(net, rounded(), given, {"step": step, "samples": samples[rows]})
            (loss / spec.microbatches).backward()
            total += float(loss.detach()) / spec.microbatches
        if spec.clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), spec.clip)
            if norms is not None:
                norms.append(float(norm))
        if gradients is not None:
            gradients.update((name, p.grad.clone()) for name, p in net.named_parameters())
        optimizer.step()
        losses.append(total)
    return losses, {name: p.detach().cpu().clone() for name, p in net.named_parameters()}


@cache
def plain(spec: RunSpec) -> tuple[list[float], dict[str, Tensor]]:
    """`train`, once per distinct computation."""
    return train(spec)


def judge(spec: RunSpec) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and parameters of plain training for a spec."""
    return plain(
        spec.with_(
            options=type(spec.options)(),
            activations="recompute",
            save_every=0,
            device_memory=None,
            host_memory=None,
        )
    )


def made_up_profile(spec: RunSpec) -> Profile:
    """Sizes of the spec's model with invented times, for tests that need a plan but no
    prediction.
    """
    model = make_model(spec.model)
    into = {
        unit: Boundary(model.boundary(unit, spec.model.seq), DTYPES[spec.dtype]).nbytes(
            spec.microbatch
        )
        for unit in range(1, model.num_units)
    }
    activation = max(into.values())
    if spec.model.rows == DOCUMENTS:
        into[0] = 2 * torch.int64.itemsize * spec.microbatch * spec.model.seq
    hardware = Hardware(
        name="made up",
        source="published",
        device="cpu",
        cores=2,
        device_bytes=1 << 30,
        host_bytes=1 << 30,
        h2d_bytes_per_s=1e9,
        d2h_bytes_per_s=1e9,
        host_adam_params_per_s=1e8,
        device_adam_params_per_s=1e9,
        matmul_flops_per_s=1e10,
        disk_read_bytes_per_s=1e8,
        disk_write_bytes_per_s=1e8,
    )
    units = tuple(
        UnitCost(
            kind=model.kind(unit),
            parameters=model.unit_parameters(unit),
            forward_s=1e-3,
            recompute_s=1e-3,
            backward_s=2e-3,
            input_bytes=into.get(unit, 0),
            output_bytes=into.get(unit + 1, 4),
            kept_bytes=16 * activation,
            forward_scratch_bytes=8 * activation,
            recompute_scratch_bytes=8 * activation,
            backward_scratch_bytes=8 * activation,
        )
        for unit in range(model.num_units)
    )
    return Profile(
        hardware=hardware,
        units=units,
        microbatch=spec.microbatch,
        seq=spec.model.seq,
        weight_bytes=4 if spec.dtype == "fp32" else 2,
    )
