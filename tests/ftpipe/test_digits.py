"""The study of digits trains as each of its names says."""

from __future__ import annotations

import torch

from benchmarks import ftpipe_digits as study


def test_each_way_to_train_has_a_network_of_its_own(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 12)
    digits = study.part("train")
    found = {how: study.trained(how, 0, digits) for how in study.HOWS}
    ends = [net[0].linear.weight for net in found.values()]
    assert not any(torch.equal(a, b) for n, a in enumerate(ends) for b in ends[:n])
    again = study.trained("predicted", 0, digits)
    assert torch.equal(again[0].linear.weight, found["predicted"][0].linear.weight)
