"""A decoder's head in parts gives the loss and the gradients of its own code."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.model.test_hf_decoders import config
from workbench.model.base import Context, move_buffers, set_parameter
from workbench.model.hf import HFModel
from workbench.model.hf_head import DividedHead

transformers = pytest.importorskip("transformers")

SAMPLES, TOKENS, WORDS = 8, 32, 5_003
CONTEXT = Context(seed=0, step=0, unit=0, samples=tuple(range(SAMPLES)))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made within."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return made


def filled(module: nn.Module) -> nn.Module:
    draw = torch.Generator().manual_seed(2)
    for name, p in list(module.named_parameters()):
        set_parameter(module, name, torch.randn(p.shape, generator=draw))
    move_buffers(module, torch.device("cpu"))
    return module


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("gemma2", {"final_logit_softcapping": 5.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 3.0}),
        ("phi", {}),  # has a bias
        ("mixtral", {}),  # the loss of its routers is added
    ],
)
def test_parts_equal_the_whole_and_logits_are_never_all_there(name, changes):
    model = HFModel.from_config(config(name, vocab_size=WORDS, **changes))
    module, draw = filled(model.skeleton(model.head)), torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, TOKENS, model.hidden, generator=draw).requires_grad_()
    targets = torch.randint(WORDS, (SAMPLES, TOKENS), generator=draw)

    def run() -> tuple[int, list[torch.Tensor]]:
        with Largest() as largest:
            loss = model.forward(model.head, module, x, CONTEXT, targets)
            grads = torch.autograd.grad(loss, [x, *module.parameters()])
        return largest.elements, [loss.detach(), *grads]

    small = partial(DividedHead.loss, model._divided, chunk_bytes=1)
    model._divided = SimpleNamespace(loss=small)
    largest, parts = run()
    model._divided = None
    whole_largest, whole = run()
    assert largest < SAMPLES * TOKENS * WORDS <= whole_largest
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_a_head_that_sees_other_tokens_is_left_whole():
    class Neighbours(transformers.LlamaForCausalLM):
        """Adds to each token's logits those of the token before."""

        def forward(self, *args, **kwargs):
            made = super().forward(*args, **kwargs)
            made.logits = made.logits + F.pad(made.logits, (0, 0, 1, 0))[:, :-1]
            return made

    own = config("llama", vocab_size=WORDS)
    assert HFModel(transformers.LlamaForCausalLM(own))._divided is not None
    assert HFModel(Neighbours(own))._divided is None
