"""Stages that a plan finds within a budget, of a T5 whose costs are counted."""

import pytest

from workbench.core.model_spec import ModelSpec
from workbench.core.spec import RunSpec
from workbench.methods.ftpipe.parts import cut_and_map, partitioned
from workbench.methods.ftpipe.planner import plan, with_stages
from workbench.methods.ftpipe.stage_sizes import sizes_of
from workbench.model.named import NAMED
from workbench.profile.server import server_of
from workbench.runs.planning import choose_profiles
from workbench.runs.store import Store

T5 = ModelSpec(**NAMED["t5-3b"], target_seq=4, tied=False)
GIB = 1 << 30


def asked(**more):
    values = {"batch": 80, "microbatches": 5, "ranks": 2, "dtype": "bf16", "model": T5}
    return RunSpec.of(method="ftpipe", **values, **more)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("results"))
    return next(iter(choose_profiles(asked(), store, "h200-141gb", str).values()))


@pytest.mark.parametrize("partitioner", ["mpipe", "pipedream"])
def test_stages_fit_by_their_schedule_where_a_graph_knows_no_scratch_memory(profile, partitioner):
    spec = asked(partitioner=partitioner, device_memory=38 * GIB)
    found = partitioned(spec, profile, sizes_of(profile), server_of(profile, spec))
    first = cut_and_map(found)
    assert not plan(spec.with_(cut=first[0], map=first[1]), profile).fits
    assert plan(with_stages(spec, profile), profile).fits


def test_a_budget_below_all_stages_is_refused_with_its_need(profile):
    with pytest.raises(ValueError, match="the graph needs .* more than the 16 GiB"):
        with_stages(asked(device_memory=8 * GIB), profile)
