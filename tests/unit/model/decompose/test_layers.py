"""Which layers come out, and what crosses between them."""

from __future__ import annotations

import copy
import pickle
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.model.decompose.checks import gather, run, tensors
from tests.unit.model.decompose.zoo import MODELS, Block, D, Tied, UNet, ids
from workbench.model.decompose import Value, decompose, from_list


def chain_of(name, **options):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    model, (args, kwargs) = kind(), make(4)
    return model, decompose(model, args, kwargs, **options)


def crossing(layers):
    return [[value.name for value in layer.outputs] for layer in layers]


# -- which modules become layers -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("tied", "words blocks.0 blocks.1 blocks.2 norm head"),
        ("resnet", "conv bn stages.0 stages.1 conv2 head"),
        ("unet", "down1 down2 middle up2 up1"),
        ("twice", "first block bn block bn"),
        ("values", "first router last"),
    ],
)
def test_blocks_are_found_by_rule(name, names):
    _, layers = chain_of(name)
    assert [layer.name for layer in layers] == names.split()
    assert [layer.index for layer in layers] == list(range(len(layers)))


def test_stages_are_opened_and_blocks_are_not():
    def stage():
        return nn.Sequential(Block(), Block())

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList([stage(), stage()])
            self.tail = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Sequential(nn.Linear(D, D)))

        def forward(self, x):
            for part in self.stages:
                x = part(x)
            return self.tail(x)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = Encoder(), Encoder()
            self.norm = nn.LayerNorm(D)

        def forward(self, x):
            return self.norm(self.left(x) + self.right(x))

    layers = decompose(Wrapped(), (torch.randn(4, D),))
    side = ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1", "tail.0", "tail.2"]
    expected = [f"left.{name}" for name in side] + [f"right.{name}" for name in side] + ["norm"]
    assert [layer.name for layer in layers] == expected


def test_a_module_without_children_is_a_model_too():
    model = nn.Linear(D, 3)
    (layer,) = decompose(model, (torch.randn(4, D),))
    assert layer.state == {"0.weight": "weight", "0.bias": "bias"}
    assert layer.outputs == (Value("output", (3,), torch.float32, True),)


# -- what crosses --------------------------------------------------------------------------------
def test_skips_are_relayed_under_their_names_and_not_copied():
    _, layers = chain_of("unet")
    names = crossing(layers)
    assert [("down1" in names[i], "down2" in names[i]) for i in range(4)] == [
        (True, False),
        (True, True),
        (True, False),  # down2 was joined by cat in the layer before `up2`
        (False, False),
    ]
    values = (torch.randn(2, 3, 8, 8),)
    for layer in layers[:3]:
        before = dict(zip([v.name for v in layer.inputs], values, strict=True))
        values = layer.module(*values)
        for value, tensor in zip(layer.outputs, values, strict=True):
            assert value.name not in before or tensor is before[value.name]


def test_masks_are_relayed_without_gradients_and_constants_are_not_relayed():
    _, layers = chain_of("tied")
    for layer in layers[1:4]:
        named = {value.name: value for value in layer.inputs}
        assert len(named) == 2
        assert not named.pop("float").differentiable
        assert next(iter(named.values())).differentiable
    _, layers = chain_of("constants")  # noise is random: it must be drawn once
    assert [len(layer.inputs) for layer in layers] == [1, 2, 1]
    assert "rand" in crossing(layers)[0]


def test_shapes_are_per_sample_wherever_the_batch_dimension_is():
    _, layers = chain_of("folded")
    (value,) = layers[0].outputs
    assert (value.shape, value.batch_dim, value.rows) == ((D,), 0, 4)
    assert value.full_shape(7) == (28, D)
    model = nn.Sequential(nn.LSTM(D, 3, 2))  # [S, B, D] -> [S, B, 3], ([2, B, 3], [2, B, 3])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.last = model, nn.Linear(3, 3)

        def forward(self, x):
            y, (h, c) = self.net(x.transpose(0, 1))
            return self.last(y), h + c

    layers = decompose(Model(), (torch.randn(4, 5, D),))
    assert [(v.shape, v.batch_dim) for v in layers[0].outputs] == [((5, 3), 1)] + 2 * [((2, 3), 1)]


def test_a_cut_moves_up_where_that_halves_what_crosses():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.b(torch.relu(F.interpolate(torch.relu(self.a(x)), scale_factor=2)))

    layers = decompose(Model(), (torch.randn(2, 3, 4, 4),))
    assert [value.shape for value in layers[0].outputs] == [(3, 4, 4)]
    assert [call.target.__name__ for call in layers[0].module.plan.calls[1:]] == ["relu"]


def test_inputs_that_are_no_batches_are_relayed_as_they_are():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x, batch):
            return self.b(self.a(x) + batch["bias"]) * batch["scale"] + batch["more"]

    batch = {"bias": torch.randn(1, D), "scale": torch.tensor(2.0), "more": torch.randn(4, D)}
    layers = decompose(Model(), (torch.randn(4, D), batch))
    dims = {value.name: value.batch_dim for value in layers[0].inputs}
    assert dims == {"x": 0, "batch.bias": None, "batch.scale": None, "batch.more": 0}


# -- loss, lists, copies -------------------------------------------------------------------------
def test_a_criterion_is_part_of_the_last_layer():
    def criterion(output, targets):
        return F.cross_entropy(output["logits"].flatten(0, 1), targets.flatten())

    model, layers = chain_of("tied", criterion=criterion)
    assert layers[-1].outputs == (Value("loss", (), torch.float32, True, None),)
    model.eval()
    tokens, targets, mask = ids(3), ids(3), torch.ones(3, 5, dtype=torch.bool)
    loss = run(layers, (tokens,), {"mask": mask, "scale": 2.0}, targets=targets)
    expected = criterion(model(tokens, mask=mask, scale=2.0), targets)
    assert torch.equal(loss, expected)
    loss.backward()
    found = model.words.weight.grad.clone()
    model.zero_grad()
    expected.backward()
    assert torch.equal(found, model.words.weight.grad)


def test_a_list_of_layers_spreads_tuples():
    class Split(nn.Module):
        def forward(self, x):
            return x[:, :3], x[:, 3:]

    class Join(nn.Module):
        def forward(self, left, right):
            return {"sum": left + right}

    torch.manual_seed(0)
    parts = [nn.Linear(D, D), Split(), Join()]
    layers = from_list(parts, (torch.randn(4, D),))
    assert [layer.name for layer in layers] == ["0", "1", "2"]
    assert gather(layers).keys() == nn.Sequential(*parts).state_dict().keys()
    x = torch.randn(7, D)
    y = parts[0](x)
    assert torch.equal(run(layers, (x,))["sum"], y[:, :3] + y[:, 3:])
    (loss,) = from_list(parts[:1], (x,), criterion=F.mse_loss)[0].module(x, targets=y.detach())
    assert loss.item() == 0
    layers = from_list([parts[0], parts[0]], (torch.randn(4, D),))
    assert layers[1].shared == {"0.weight": (0, "0.weight"), "0.bias": (0, "0.bias")}
    assert torch.equal(run(layers, (x,)), parts[0](parts[0](x)))


def test_layers_can_be_copied_and_sent():
    _, layers = chain_of("unet")
    x = torch.randn(2, 3, 8, 8)
    expected = run(layers, (x,))
    for other in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers))):
        assert other[1].inputs == layers[1].inputs
        assert torch.equal(run(other, (x,)), expected)
        other[0].module.get_parameter("0.net.0.bias").data.zero_()
    assert torch.equal(run(layers, (x,)), expected)


def test_example_tensors_may_be_anywhere_and_gradients_may_be_off():
    model = Tied()
    with torch.inference_mode():
        layers = decompose(model, (ids(4).to("meta"),), {"mask": torch.ones(4, 5, device="meta")})
    assert layers[2].inputs[0].differentiable or layers[2].inputs[1].differentiable
    model.requires_grad_(False)
    layers = decompose(model, (ids(4),), {"mask": torch.ones(4, 5)})
    assert not any(value.differentiable for layer in layers for value in layer.outputs)


def test_layers_run_on_the_device_their_inputs_are_on():
    """Constants are made there, wherever the model was when it was decomposed."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            return self.b(self.a(x) + torch.arange(D, device=x.device))

    layers = decompose(Model(), (torch.randn(4, D),))
    for layer in layers:
        layer.module.to("meta")
    out = run(layers, (torch.randn(3, D, device="meta"),))
    assert (out.device.type, out.shape) == ("meta", (3, D))


def test_a_layer_holds_nothing_longer_than_it_is_needed(monkeypatch):
    monkeypatch.setattr("workbench.model.decompose.choose", lambda model: {"words"})
    model = Tied().eval()
    found = {}
    model.blocks[0].down.register_forward_hook(lambda *call: found.update(tensor=ref(call[2])))
    model.head.register_forward_hook(lambda *call: found.update(dead=found["tensor"]() is None))
    (layer,) = decompose(model, (ids(4),), {"mask": torch.ones(4, 5)})
    with torch.no_grad():
        layer.module(ids(4), torch.ones(4, 5))
    assert found["dead"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tied", "resnet", "unet", "values", "weights"])
def test_models_on_a_gpu(name):
    torch.manual_seed(0)
    kind, make = MODELS[name]
    model = kind().cuda().eval()

    def moved(batch):
        args, kwargs = make(batch)
        on_gpu = {key: v.cuda() if isinstance(v, torch.Tensor) else v for key, v in kwargs.items()}
        return tuple(arg.cuda() for arg in args), on_gpu

    layers = decompose(model, *moved(4))
    for batch in (1, 3):
        args, kwargs = moved(batch)
        found, expected = run(layers, args, kwargs), model(*args, **kwargs)
        for one, two in zip(tensors(found), tensors(expected), strict=True):
            assert one.is_cuda
            torch.testing.assert_close(one, two)


def test_only_what_follows_a_trained_layer_is_differentiable():
    model = UNet()
    for part in (model.down1, model.down2):
        part.requires_grad_(False)
    layers = decompose(model, (torch.randn(2, 3, 8, 8),))
    flags = [{v.name: v.differentiable for v in layer.outputs} for layer in layers]
    assert not any(flags[0].values())
    assert not any(flags[1].values())
    assert flags[2]["down1"] is False
    assert all(flags[3].values())


def test_copies_share_what_was_written_of_a_layer_and_pickles_hold_none_of_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    first, *_ = decompose(model, (torch.rand(2, 4),))
    copied, x = copy.deepcopy(first.module), torch.rand(3, 4)
    assert copied._written is first.module._written
    copied.get_parameter("0.weight").data.zero_()
    assert not torch.equal(copied(x)[0], first.module(x)[0]), "its weights are its own"
    again = pickle.loads(pickle.dumps(first.module))
    assert torch.equal(again(x)[0], first.module(x)[0])
    assert again._written is not first.module._written
