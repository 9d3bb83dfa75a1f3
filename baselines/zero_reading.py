"""Weights of a checkpoint that DeepSpeed's ZeRO has written, by DeepSpeed's own reader.

Its files are pickled, and the reader lets them run anything. Here they may name three classes of
DeepSpeed's, and make nothing else than tensors and plain data. Under ZeRO-2 the reader holds all
fp32 weights in memory at once.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pickle import UnpicklingError

import torch
from torch import Tensor

from workbench.model.base import LayeredModel
from workbench.model.weights.outgoing import Weights
from workbench.runtime.checkpoint.manifest import Saved, unreadable

PLAIN = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable by which torch makes nothing of a pickle but what is allowed."""


def weights_of(saved: Saved, model: LayeredModel) -> Weights:
    """The fp32 weights, a unit's together. Raises OSError where a file is damaged or holds anything
    else."""
    saved.check(saved.manifest.files)
    with plain_data():
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        try:
            state = get_fp32_state_dict_from_zero_checkpoint(
                str(saved.path.parent), tag=saved.path.name, lazy_mode=True
            )
        except (UnpicklingError, ValueError) as error:
            raise unreadable(saved.path, error) from error

    def read(unit: int, local: str) -> Tensor:
        return state[model.state_name(unit, local)].contiguous().clone()

    return Weights.of_units(model, read)


@contextmanager
def plain_data() -> Iterator[None]:
    """Within, `torch.load` makes tensors and plain data, whatever its caller allows, and DeepSpeed
    prints nothing."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        from deepspeed.runtime.fp16.loss_scaler import LossScaler
        from deepspeed.runtime.zero.config import ZeroStageEnum
        from deepspeed.utils.tensor_fragment import fragment_address

        before = os.environ.get(PLAIN)
        os.environ[PLAIN] = "1"
        try:
            with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
                yield
        finally:
            del os.environ[PLAIN]
            if before is not None:
                os.environ[PLAIN] = before
