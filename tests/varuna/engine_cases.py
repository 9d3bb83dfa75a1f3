"""Cases of engines in a loop of several processes, which begin otherwise than they should."""

from __future__ import annotations

import torch
import torch.distributed as dist


def disagreeing(stages: int, replicas: int, method: str, results: str) -> dict:
    """Words of the errors of engines of which the last rank is given something else, at last a
    learning rate in the second step, which is taken then; and the steps of that engine."""
    from tests.methods import loops as user
    from workbench import Engine

    def other(logits: torch.Tensor, batch: dict) -> torch.Tensor:
        return 2 * user.loss_of(logits, batch)

    last, said, batch = dist.get_rank() > 0, [], next(user.batches())
    steps = 0
    for what in ("weight_decay", "clip", "loss_fn", "frozen", "lr"):
        odd = what if last else ""
        module = user.net(frozen=method != "fsdp")
        module.blocks[2].inner.weight.requires_grad_(odd != "frozen")
        config = {"lr": user.LR, "weight_decay": 0.2 if odd == "weight_decay" else 0.1}
        given = {"clip": None if odd == "clip" else 0.5, "results": results, "device": "cpu"}
        loss_fn = other if odd == "loss_fn" else user.loss_of
        with Engine(module, config, method=method, **given) as engine:
            try:
                for rate in (user.LR, user.LR / 2 if odd == "lr" else user.LR):
                    engine.optimizer.param_groups[0]["lr"] = rate
                    engine.step(batch, loss_fn)
            except ValueError as error:
                said.append(str(error))
            if what == "lr":
                engine.optimizer.param_groups[0]["lr"] = user.LR
                engine.step(batch, loss_fn)
                steps = engine.steps
    return {"said": said, "steps": steps}
