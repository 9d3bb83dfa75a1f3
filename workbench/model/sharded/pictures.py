"""Operators of wide residual networks as modules, each over the shards of one device of its row.

Between them each device of a row has all channels (Aceso, EuroSys'24). A convolution is divided by
its output channels, which are gathered, or by its input channels, of which each device takes its
own, and the terms are added up. BatchNorm takes its statistics from the whole micro-batch, however
many rows of devices share it: plain training is what any division is compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.model.operators.operator import Kind
from workbench.model.sharded.base import Rows, Sharded
from workbench.model.sharded.shards import WHOLE, Shard

MOMENTUM, EPS = 0.1, 1e-5


class Convolution(Sharded):
    """[B, inputs, h, w] -> [B, outputs, h / stride, w / stride]."""

    kernels = ("weight",)

    def divided(self) -> dict[str, Shard]:
        return {name: Shard(self.algo) for name in self.kernels}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return self.convolved(x, self.weight)

    def convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        """The whole output, of this device's shard of the kernels."""
        window, columns = self.place.window, self.columns
        if columns.count == 1:
            return F.conv2d(x, weight, stride=window.stride, padding=window.padding)
        if self.algo:
            own = columns.share(x, 1)
            return columns.summed(
                F.conv2d(own, weight, stride=window.stride, padding=window.padding)
            )
        own = F.conv2d(columns.read(x), weight, stride=window.stride, padding=window.padding)
        return columns.gathered(own, 1, self.place.form.tail[0])


class BatchNorm(Sharded):
    """[B, channels, h, w] -> normalized, and where its place says so what is above zero."""

    pure = False

    def divided(self) -> dict[str, Shard]:
        return {f"{self.inner}{name}": WHOLE for name in ("weight", "bias")}

    @property
    def inner(self) -> str:
        """Where the norm is in the submodule."""
        return "0." if self.place.rectified else ""

    def statistics(self) -> dict[str, Tensor]:
        """Running ones, by their names in the submodule."""
        return {f"{self.inner}{name}": value for name, value in self.named_buffers()}

    def take(self, whole, device: torch.device) -> None:
        super().take(whole, device)
        self.begin(next(self.parameters()))

    def begin(self, like: Tensor) -> None:
        """Statistics before the first step."""
        self.register_buffer("running_mean", torch.zeros_like(like))
        self.register_buffer("running_var", torch.ones_like(like))
        self.register_buffer(
            "num_batches_tracked", torch.zeros((), dtype=torch.int64, device=like.device)
        )

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        y = self.normalized(x, rows, *self.owned().values())
        return y.relu() if self.place.rectified else y

    def normalized(self, x: Tensor, rows: Rows, weight: Tensor, bias: Tensor) -> Tensor:
        """By the statistics of all rows, in their precision."""
        dtype, x = x.dtype, x.to(self.running_mean.dtype)
        return self._normalized(x, rows, weight.type_as(x), bias.type_as(x)).to(dtype)

    def _normalized(self, x: Tensor, rows: Rows, weight: Tensor, bias: Tensor) -> Tensor:
        if not rows.ctx.training:
            return F.batch_norm(x, self.running_mean, self.running_var, weight, bias, eps=EPS)
        own = self.running_mean, self.running_var
        if rows.again:
            own = tuple(each.clone() for each in own)
        else:
            self.num_batches_tracked.add_(1)
        if self.rows.count == 1:
            return F.batch_norm(x, *own, weight, bias, True, MOMENTUM, EPS)
        count = rows.whole * x.shape[2] * x.shape[3]
        mean = self.rows.total(x.sum((0, 2, 3))) / count
        apart = x - mean[:, None, None]
        variance = self.rows.total(apart.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            own[0].lerp_(mean.detach(), MOMENTUM)
            own[1].lerp_(variance.detach() * (count / (count - 1)), MOMENTUM)
        scale = weight * (variance + EPS).rsqrt()
        return apart * scale[:, None, None] + bias[:, None, None]


class Relu(Sharded):
    """What is above zero."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return x.relu()


class MaxPool(Sharded):
    """The largest of three by three pixels, of every second."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return F.max_pool2d(x, 3, stride=2, padding=1)


class Add(Sharded):
    """A block's output, and its input."""

    def forward(self, y: Tensor, rows: Rows, x: Tensor) -> Tensor:
        return y + x


class DownsampleAdd(BatchNorm, Convolution):
    """A block's output, and a convolution of its input, normalized."""

    kernels = ("skip.0.weight",)
    inner = "skip.1."

    def divided(self) -> dict[str, Shard]:
        return Convolution.divided(self) | BatchNorm.divided(self)

    def begin(self, like: Tensor) -> None:
        super().begin(self.owned()["skip.1.weight"])

    def forward(self, y: Tensor, rows: Rows, x: Tensor) -> Tensor:
        kernel, weight, bias = self.owned().values()
        return y + self.normalized(self.convolved(x, kernel), rows, weight, bias)


class AveragePool(Sharded):
    """[B, channels, h, w] -> [B, channels]."""

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        return x.mean((2, 3))


class Classifier(Sharded):
    """[B, channels] -> this row's part of the mean loss of the micro-batch. Each device of a row
    has all classes."""

    pure = False

    def divided(self) -> dict[str, Shard]:
        return {"weight": WHOLE, "bias": WHOLE}

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        logits = F.linear(x, self.weight, self.bias).float()
        return F.cross_entropy(logits, rows.targets, reduction="sum") / rows.labels


PICTURES: dict[Kind, type[Sharded]] = {
    "conv": Convolution, "batchnorm": BatchNorm, "relu": Relu, "maxpool": MaxPool, "add": Add,
    "downsample-add": DownsampleAdd, "avgpool": AveragePool, "classifier": Classifier,
}  # fmt: skip
