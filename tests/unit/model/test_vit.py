"""Vision transformers have the published sizes, compute the published blocks, and are cut at
them."""

import pytest
import torch
from torch.nn import functional as F

from workbench.core.model_spec import ModelSpec
from workbench.model import make_model, units_of
from workbench.model.named import NAMED
from workbench.model.vit import NORM_EPS, Vit, VitShape
from workbench.runs.overrides import make_spec


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit_base_patch16_384", 86_859_496), ("vit_large_patch32_384", 306_632_680)],
)
def test_published_sizes(name, parameters):
    spec = make_spec({"method": "plain"}, {"family": name}).model
    assert spec == ModelSpec(**NAMED[name]) == ModelSpec.from_dict(spec.to_dict())
    model = make_model(spec)
    assert model.parameters_count() == parameters
    assert model.num_units == units_of(spec) == spec.layers + 2
    tokens = 1 + (spec.seq // spec.patch) ** 2
    assert model.boundary(1, spec.seq)[0].shape == (tokens, spec.hidden)


def test_it_computes_what_the_paper_writes():
    """Equations 1 to 4, patches cut by hand and torch's own attention."""
    torch.manual_seed(0)
    net = Vit(VitShape(layers=1, hidden=8, heads=2, image=6, patch=3, classes=5)).double()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter)
    pictures = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    cut = [pictures[:, :, i : i + 3, j : j + 3].flatten(1) for i in (0, 3) for j in (0, 3)]
    project, block = net.embedding.project, net.blocks[0]
    tokens = torch.stack(cut, 1) @ project.weight.flatten(1).T + project.bias
    z = torch.cat([net.embedding.first.expand(2, 1, 8), tokens], 1) + net.embedding.positions
    normed = F.layer_norm(z, (8,), block.norm1.weight, block.norm1.bias, NORM_EPS)
    attended, _ = F.multi_head_attention_forward(
        *[normed.transpose(0, 1)] * 3, 8, 2, block.qkv.weight, block.qkv.bias, None, None, False,
        0.0, block.out.weight, block.out.bias,
    )  # fmt: skip
    z = z + attended.transpose(0, 1)
    z = z + block.narrow(F.gelu(block.wide(block.norm2(z))))
    torch.testing.assert_close(net(pictures), net.head.linear(net.head.norm(z)[:, 0]))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="patches of 5 pixels do not divide pictures of 32"):
        ModelSpec(family="vit", layers=1, hidden=8, heads=2, seq=32, patch=5)
    with pytest.raises(ValueError, match="patch is 4; of the model resnet it means nothing"):
        ModelSpec(family="resnet", patch=4)
    with pytest.raises(ValueError, match="3 heads do not divide a hidden size of 8"):
        ModelSpec(family="vit", hidden=8, heads=3)
