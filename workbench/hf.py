"""Trainer of Hugging Face's transformers, whose model a method trains.

    from workbench.hf import EngineTrainer

    trainer = EngineTrainer(model, args, train_dataset=rows,
                            engine={"method": "stronghold", "device_memory": "24GiB"})

Trainer's loop is an ordinary one, so it stays as it is, over a wrapped model (workbench/wrapped).
Here is the rest. A number that changes is no argument of a wrapped model: it is asked for the sum
of its losses, which are divided by the labels of all batches of a step outside of it; a loss that
takes no number of labels is a mean in Trainer, too. Trainer's norm is the engine's. Weights are
saved from where they are, and a ``checkpoint-N`` has a folder ``engine``, with weights and moments
as `Engine.save` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from workbench.core.mistakes import in_a_sentence
from workbench.wrapped import wrap
from workbench.wrapped.module import Wrapped

try:
    import accelerate  # noqa: F401  # Trainer asks for it later
    from transformers import Trainer
except ModuleNotFoundError as error:
    raise ImportError(
        f"{error.name} is not installed, which workbench.hf needs; pip install {error.name}"
    ) from None

FOLDER = "engine"
"""Of a checkpoint of Trainer's, with weights and moments."""
NEVER = 1e30
"""A norm to which nothing is clipped; with it the norm is known."""


class EngineTrainer(Trainer):
    """A Trainer whose model is trained by a method. In between, `model` has the weights of the last
    evaluation or save."""

    @in_a_sentence()
    def __init__(self, *args: Any, engine: Mapping[str, Any], **kwargs: Any) -> None:
        """`engine`: arguments of `workbench.wrap`, such as ``{"method": "stronghold",
        "device_memory": "24GiB"}``; clipping, accumulation and dtype are Trainer's arguments. The
        others are those of `transformers.Trainer`. Raises ValueError for what an engine cannot
        follow."""
        super().__init__(*args, **kwargs)
        given = self.args
        for name, of in {
            "clip": "max_grad_norm", "accumulate": "gradient_accumulation_steps",
            "dtype": "bf16", "microbatches": "per_device_train_batch_size",
        }.items():  # fmt: skip
            if name in engine:
                raise ValueError(f"engine has {name}; give Trainer's {of} instead")
        model, optimizer = self.model, self.optimizer
        for wrong, why in {
            "LoRA and other adapters": hasattr(model, "peft_config"),
            f"label_smoothing_factor={given.label_smoothing_factor}": self.label_smoother,
            "compute_loss_func": self.compute_loss_func,
            f"the own compute_loss of {type(self).__name__}": (
                type(self).compute_loss is not EngineTrainer.compute_loss
            ),
            f"neftune_noise_alpha={given.neftune_noise_alpha}": given.neftune_noise_alpha,
            "fp16": given.fp16,
            "torch_compile": given.torch_compile,
            "deepspeed": given.deepspeed,
            "fsdp": given.fsdp,
            "several processes": given.world_size > 1,
            "a scheduler made before": optimizer is not None and self.lr_scheduler is not None,
            "the loss of a router": getattr(model.config, "output_router_logits", False),
        }.items():
            if why:
                raise ValueError(
                    f"EngineTrainer does not train with {wrong}; leave it out, or use "
                    "transformers.Trainer"
                )
        given._n_gpu = min(given.n_gpu, 1)  # no DataParallel around it
        self._how = {"dtype": "bf16" if given.bf16 else "fp32", "seed": given.seed, **engine}
        self._loop: Wrapped | None = None
        self._counts: bool | None = None
        """Whether the model's loss takes the number of labels, once it has been asked."""

    # -- training -------------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`; the model has the trained weights after it."""
        found = super().train(*args, **kwargs)
        self._take_out()
        return found

    def _move_model_to_device(self, model: nn.Module, device: Any) -> None:
        """The engine has the model's weights where the method keeps them."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Batches go from the host to where passes are."""
        return inputs

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> Any:
        if self._loop is None and training:
            clip = self.args.max_grad_norm or NEVER
            model, self.optimizer = wrap(self.model, self.optimizer, clip=clip, **self._how)
            self._loop = model
        if self._loop is None and any(p.is_meta for p in model.parameters()):
            raise ValueError(
                "the model is on the meta device, and has no values before train(); give "
                "TrainingArguments(eval_on_start=True) to evaluate before the first step"
            )
        return self._loop or model

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """The engine has its dtype by itself; evaluation is in fp32."""
        return nullcontext()

    def training_step(self, model: Wrapped, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """As Trainer's; gradients of all but a step's last batch are held."""
        with nullcontext() if self.accelerator.sync_gradients else model.no_sync():
            return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:  # fmt: skip
        """The model's own loss, over the step's labels where Trainer counts them for it."""
        divisor = None
        if model.training and num_items_in_batch is not None and self.model_accepts_loss_kwargs:
            if self._counts is None:
                self._counts = takes_count(self.model, inputs)
            divisor, num_items_in_batch = (num_items_in_batch, 1) if self._counts else (None, None)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = (loss if divisor is None else loss / divisor).to(self.args.device)
        return (loss, outputs) if return_outputs else loss

    def _clip_grad_norm(self, model: Wrapped) -> float | None:
        return model.grad_norm

    def _get_grad_norm(self, model: Wrapped, grad_norm: Any = None) -> float | None:
        return model.grad_norm

    # -- weights --------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self._take_out()
        super()._save(output_dir, state_dict)

    def _take_out(self) -> None:
        """Have the weights of now in the model; in a twin, where it has no values."""
        if self._loop is not None:
            self.model = self._loop.trained()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self._loop.save(Path(output_dir) / FOLDER)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        own = all(not p.is_meta for p in self.model.parameters())
        if self._loop.load(Path(checkpoint) / FOLDER, has_weights=own) is None:
            raise ValueError(
                f"{checkpoint} has no folder {FOLDER!r} with weights and moments; resume from a "
                "checkpoint that EngineTrainer has saved without save_only_model"
            )

    def _load_best_model(self) -> None:
        self._loop.close()  # the weights of the model itself are the best ones from here on
        self._loop, self.model_wrapped, self.optimizer = None, self.model, None
        super()._load_best_model()


class Noted(Tensor):
    """A number that knows whether it was computed with."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in args:
            if isinstance(leaf, cls):
                leaf.noted = True
        return super().__torch_function__(func, types, args, kwargs or {})


def takes_count(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Whether the loss of a model is divided by the number of labels that it is called with, as
    far as a call without values shows it; losses of transformers mostly are."""
    device = next(model.parameters()).device
    count = torch.ones(()).as_subclass(Noted)
    try:
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            given = tree_map_only(Tensor, lambda t: mode.from_tensor(t).to(device), dict(inputs))
            model(**given, num_items_in_batch=count)
    except Exception:  # whatever a model's code wants of values
        return True
    return hasattr(count, "noted")
