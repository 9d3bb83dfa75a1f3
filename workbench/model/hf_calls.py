"""Arguments that a decoder calls its layers with, found by recorders in the place of layers.

They depend on the shape of the hidden states and not on their values: masks, positions and rotary
tables. Those of samples of several documents follow positions, too, which differ from batch to
batch. For a compiled or recorded block they are a function of positions (`Calls.following`):
Hugging Face's own code makes them once, of positions without values, and is written down as a graph
of torch's operations for one shape. A block makes its arguments by that graph, of positions that
come beside its hidden states. So no batch is compiled anew, nothing is kept between passes, and the
device is asked for nothing.

Where each sample of a micro-batch is one document, the decoder gives no mask, and attention takes
its causal kernel. The graph sees no values, and would: so who calls a block says whether samples
are `uniform` (base.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes

from workbench.model.base import Call, set_parameter
from workbench.model.decompose.plan import build, flatten
from workbench.model.hf_config import understood

Record = Callable[[Tensor, "Tensor | None"], list[Call]]
"""(hidden states [B, S, H], positions [B, S] or None) -> with what each layer is called."""
EXAMPLES = ((0, 1, 2, 0, 1), (0, 0, 1, 2, 3)), ((0, 1, 2, 3, 4), (0, 1, 0, 1, 0))
"""Positions of two samples, twice."""


class Recorder(nn.Module):
    """Stands for a layer: keeps the arguments it is called with and passes the hidden states on."""

    def __init__(self, more: tuple | None) -> None:
        super().__init__()
        self.more = more
        self.seen: list[tuple[Tensor, Call]] = []

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.seen.append((hidden_states, (args, kwargs)))
        return hidden_states if self.more is None else (hidden_states, *self.more)


def at_positions(positions: Tensor | None) -> dict[str, Tensor]:
    """Arguments of a decoder that give tokens their positions; documents are apart for it where
    these begin anew."""
    return {} if positions is None else {"position_ids": positions}


def recorded(
    decoder: nn.Module, x: Tensor, positions: Tensor | None, *, layers: int, name: str, norm: str
) -> list[Call]:
    """With what a decoder calls each of its layers for hidden states x. The list of layers and the
    final norm are children of these names, and replaced.

    With autograd, raises ValueError where the decoder does more than to hand x from layer to layer
    and to norm it, or hands on what was computed of x or a weight: a unit alone would not have it.
    """
    unread = set(decoder.get_input_embeddings().parameters())  # hidden states are given
    for local, p in list(decoder.named_parameters()):
        set_parameter(decoder, local, x.new_zeros(torch.Size([0]) if p in unread else p.shape))
    wrong: Exception = ValueError("it does more with hidden states than to pass them on")
    for more in (None, (), (None,)):  # some decoders take the first of what a layer gives
        recorders, last = [Recorder(more) for _ in range(layers)], Recorder(None)
        decoder._modules |= {name: nn.ModuleList(recorders), norm: last}
        try:
            made = decoder(
                inputs_embeds=x, use_cache=False, **at_positions(positions)
            ).last_hidden_state
        except Exception as error:  # whatever it raises
            wrong = error
            continue
        if made.shape == x.shape:
            break
    else:
        raise wrong
    seen = [found for recorder in (*recorders, last) for found in recorder.seen]
    if torch.is_grad_enabled():
        given = (leaf for leaf in flatten([call for _, call in seen])[0])
        if any(leaf.requires_grad for leaf in given if isinstance(leaf, Tensor)):
            raise ValueError("its layers are given more than hidden states that weights shape")
        alike = all(torch.equal(seen[0][0], state) for state in (made, *(h for h, _ in seen)))
        if len(seen) != layers + 1 or not alike:
            raise ValueError("it changes hidden states beside its layers and its final norm")
    return [call for _, call in seen]


class Calls:
    """With what a decoder calls its layers, kept for the latest shape and positions."""

    def __init__(self, recorder: Callable[[torch.device], Record], name: str) -> None:
        """`recorder` as `Decoder.recorder`; `name` of the model, for people."""
        self._recorder, self._name = recorder, name
        self._asked: tuple | None = None
        self._positions: Tensor | None = None
        self._calls: list[Call] = []
        self._followed: dict[tuple, Callable[[Tensor], Call]] = {}
        """Functions of positions by the shape, type and device of hidden states, and the layer."""

    def of(self, x: Tensor, positions: Tensor | None) -> list[Call]:
        """Arguments that the decoder passes each layer beside x [B, S, H], at positions [B, S]."""
        if positions is not None and (x.is_meta or isinstance(positions, FakeTensor)):
            with unset_fake_temporarily():  # a document a token, which takes as large a mask
                positions = torch.zeros(x.shape[:2], dtype=torch.int64)
        asked, before = (x.shape, x.dtype, x.device), self._positions
        if self._asked != asked or not _alike(before, positions):
            # Masks follow values of positions, which tensors without values do not have.
            real = "cpu" if x.is_meta else x.device
            with torch.no_grad(), understood(self._name), unset_fake_temporarily():
                there = torch.zeros(x.shape, dtype=x.dtype, device=real)
                place = None if positions is None else positions.to(real, copy=True)
                leaves, form = flatten(self._recorder(there.device)(there, place))
            moved = [leaf.to(x.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self._asked, self._positions, self._calls = asked, place, build(form, moved)
        return self._calls

    def common(self, x: Tensor, layers: Sequence[int]) -> Call:
        """Arguments that the decoder passes some of its layers beside x, counted from 0. Raises
        ValueError where they are not equal for all of these."""
        found = self.of(x, None)
        if not all(_same(found[layers[0]], found[layer]) for layer in layers[1:]):
            raise ValueError(
                f"layers of {self._name} that are alike are called in several ways for samples of "
                f"{x.shape[1]} tokens; compile and replay must be off"
            )
        return found[layers[0]]

    def following(self, x: Tensor, layer: int) -> Callable[[Tensor], Call]:
        """Function of positions [B, S] that gives the arguments of a layer, counted from 0, beside
        hidden states of the shape, type and device of x [B, S, H]. It is made once: for another
        one the compiler would begin anew, though its operations are equal. Raises ValueError where
        the decoder asks for values of positions."""
        form = x.shape, x.dtype, x.device, layer
        if form not in self._followed:
            self._followed[form] = self._traced(x, layer)
        return self._followed[form]

    def _traced(self, x: Tensor, layer: int) -> Callable[[Tensor], Call]:
        with _disable_current_modes(), torch.no_grad():
            record = self._recorder(x.device)

            def arguments(positions: Tensor) -> Call:
                there = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
                return record(there, positions)[layer]

            like = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
            try:
                traced = make_fx(arguments, tracing_mode="fake", _allow_non_fake_inputs=True)
                made = traced(like)
            except Exception as error:  # whatever its code raises
                raise ValueError(
                    f"{self._name} asks for values of positions in samples of {x.shape[1]} tokens; "
                    "compile and replay must be off"
                ) from error
        made.graph.eliminate_dead_code()  # hidden states, and what other kinds of layers get
        made.recompile()
        return made

    def follow(self, width: int, kinds: Collection[Sequence[int]]) -> bool:
        """Whether all layers of a kind, counted from 0, are called with one function of positions;
        hidden states have this width."""
        first, second = map(torch.tensor, EXAMPLES)
        x = torch.zeros(*first.shape, width)
        with _disable_current_modes(), torch.no_grad():
            for layers in kinds:
                try:
                    made = self.following(x, layers[0])
                except ValueError:
                    return False
                for positions in (first, second):
                    wanted = self.of(x, positions)
                    if not all(_same(made(positions), wanted[layer]) for layer in layers):
                        return False
        return True


def _same(one: Call, other: Call) -> bool:
    """Whether the arguments of two calls are equal."""
    (first, form), (second, another) = flatten(one), flatten(other)
    return form == another and all(map(_equal, first, second))


def _equal(one: Any, other: Any) -> bool:
    tensors = isinstance(one, Tensor) and isinstance(other, Tensor)
    return one is other or bool(torch.equal(one, other) if tensors else one == other)


def _alike(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    with unset_fake_temporarily():
        return torch.equal(one, other)
