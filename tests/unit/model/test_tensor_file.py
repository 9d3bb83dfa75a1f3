"""A file that is written tensor by tensor has the bytes of one that is written at once."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from workbench.model.weights.tensor_file import ORDER, TensorFile


def test_bytes_are_the_librarys(tmp_path) -> None:
    """In any order, of all types, and of names that JSON and sorting might take otherwise."""
    bits = torch.arange(15 * 8, dtype=torch.uint8)
    tensors = {
        name % number: (bits if dtype != torch.bool else bits % 2).clone().view(dtype)
        for number, dtype in enumerate(ORDER)
        for name in ("layers.%d", "é.%d", 'a"\\%d\n', "𝄞%d")
    }
    tensors |= {
        "number": torch.tensor(3.5), "nothing": torch.zeros(0, 4), "turned": torch.rand(4, 6).t()
    }  # fmt: skip
    empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    file = TensorFile(tmp_path / "ours", empty)
    for name, tensor in reversed(tensors.items()):
        file.write(name, tensor)
    every = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(every, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
