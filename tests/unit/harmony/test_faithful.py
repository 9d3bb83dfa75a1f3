"""The published rules on profiles of this machine: their choices, scheduled and proved by us."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.methods.plain import made_up_profile, spec_for
from workbench.core.bytesize import format_bytes
from workbench.core.division import MODES
from workbench.methods.harmony import dp, faithful, pp
from workbench.methods.harmony.problem import MicroBatchSizes, PackingProblem
from workbench.methods.harmony.published import search as published
from workbench.methods.harmony.published.profiles import Direction
from workbench.methods.harmony.published.sizes import PublishedSizes
from workbench.methods.harmony.published.timing import Server
from workbench.model import make_model
from workbench.profile.profile import Limits
from workbench.profile.server import server_of
from workbench.profile.unit_costs import ProfiledSizes, borrowed
from workbench.schedule.plan import DoesNotFit
from workbench.schedule.schedule import DEVICE
from workbench.schedule.validate import validate

SIZES = (1, 3, 8)


def asked(mode: str, **changes):
    values = {"method": f"harmony-{mode}", "batch": 8, "ranks": 2, "packing": "faithful"}
    return spec_for(**{**values, "device_memory": 600_000, **changes})


def profiles_of(spec, sizes=SIZES):
    """Larger micro-batches take less time a sample, later layers more."""
    found = {}
    for size in sizes:
        profile = made_up_profile(spec.with_(batch=size, forward_size="auto"))
        units = tuple(
            replace(
                cost, forward_s=t, recompute_s=1.1 * t, backward_s=2 * t, kept_bytes=5000 * size
            )
            for t, cost in (
                (1e-3 * (1 + size / 4) * (2 + unit), cost)
                for unit, cost in enumerate(profile.units)
            )
        )
        found[size] = replace(profile, units=units)
    return found


def setting_of(spec, mode, **changes):
    return PackingProblem(
        mode=mode, ranks=spec.ranks, minibatch=spec.batch, device_bytes=spec.device_memory,
        host_bytes=1 << 40, clipping="auto", **changes,
    )  # fmt: skip


def theirs(spec, mode, sizes=SIZES):
    """Answer of the published search when it is called directly, and the profile it is given."""
    profiles = profiles_of(spec, sizes)
    known = ProfiledSizes(profiles, tied=borrowed(make_model(spec.model)))
    server = server_of(profiles[min(profiles)], spec)
    profile = faithful.model_profile(known, spec.model.units, server, sizes, setting_of(spec, mode))
    settings = published.SearchSettings(
        mode=published.Mode(mode.upper()),
        gpus=spec.ranks,
        minibatch=spec.batch,
        memory_cap=spec.device_memory,
    )
    link = spec.ranks * min(server.load_bytes_per_s, server.store_bytes_per_s)
    machine = Server(
        swap_bytes_per_s=link,
        p2p_bytes_per_s=server.message_bytes_per_s,
        message_bytes_per_s=link,
    )
    return profile, published.search(profile, settings, machine).best[0].candidate.configuration


@pytest.mark.parametrize("memory", [700_000, 900_000, 2_000_000])
@pytest.mark.parametrize("mode", MODES)
def test_the_choices_are_those_of_the_published_search(mode, memory):
    spec = asked(mode, device_memory=memory)
    _, chosen = theirs(spec, mode)
    plan = {"pp": pp, "dp": dp}[mode].plan_sizes(spec, profiles_of(spec))
    settings = plan.settings
    assert (settings["forward_size"], settings["backward_size"]) == (
        chosen.u_forward,
        chosen.u_backward,
    )
    for way in ("forward", "backward"):
        packs = " ".join(str(len(pack)) for pack in getattr(chosen, way))
        assert settings[f"{way}_packs"] == packs
    assert settings["mirrored"] is False
    peaks = validate(plan.schedule).peak_bytes.values()
    assert max(peak[DEVICE] for peak in peaks) == plan.peak_bytes[DEVICE] <= memory
    assert "published rules" in plan.notes[0]
    ours = {"pp": pp, "dp": dp}[mode].plan_sizes(spec.with_(packing="ours"), profiles_of(spec))
    assert ours.notes == ()
    assert ours.step_seconds <= plan.step_seconds


def test_the_profile_is_in_their_form():
    """Read back as we read published profiles, it says what was measured."""
    spec = asked("pp")
    profile, _ = theirs(spec, "pp")
    measured = profiles_of(spec)
    back = PublishedSizes(profile)
    assert profile.sizes(Direction.FORWARD) == profile.sizes(Direction.BACKWARD) == SIZES
    for size in SIZES:
        for unit, cost in enumerate(measured[size].units):
            read = back.cost(unit, size)
            assert read.forward_s == pytest.approx(cost.forward_s)
            whole = cost.recompute_s + cost.backward_s
            assert read.recompute_s + read.backward_s == pytest.approx(whole)
            if 0 < unit < spec.model.units - 1:
                assert read.input_bytes == cost.input_bytes
                assert read.kept_bytes == cost.kept_bytes + cost.backward_scratch_bytes
                assert read.forward_scratch_bytes == cost.forward_scratch_bytes
    borrowed_bytes = 4 * spec.model.vocab * spec.model.hidden  # the head comes with its matrix
    assert profile.weight_bytes[-1] == 4 * measured[1].units[-1].parameters + borrowed_bytes
    assert profile.update_seconds[1] == measured[1].units[1].parameters / 1e8


def test_one_profiled_size_stands_for_all():
    spec = asked("pp")
    profile, _ = theirs(spec, "pp", sizes=(4,))
    assert profile.sizes(Direction.FORWARD) == (1, 4, 8)


def test_micro_batches_stay_within_the_limits_of_either_direction():
    """The smallest that runs, and the largest that the device has room for."""
    spec = asked("pp")
    limits = Limits(smallest=2, forward=6, backward=4)
    profiles = {size: replace(p, limits=limits) for size, p in profiles_of(spec, (2, 3, 4)).items()}
    sizes = ProfiledSizes(profiles, tied={})
    sizes_of = {"forward": MicroBatchSizes(largest=6), "backward": MicroBatchSizes(largest=4)}
    setting = setting_of(spec, "pp", smallest=2, **sizes_of)
    server = server_of(profiles[2], spec)
    profile = faithful.model_profile(sizes, spec.model.units, server, profiles, setting)
    assert profile.sizes(Direction.FORWARD) == (2, 3, 4, 6)
    assert profile.sizes(Direction.BACKWARD) == (2, 3, 4)
    settings = pp.plan_sizes(spec.with_(device_memory=900_000), profiles).settings
    assert 2 <= settings["backward_size"] <= 4
    assert 2 <= settings["forward_size"] <= 6


def test_a_choice_that_exceeds_the_device_is_refused_with_how_much():
    """Their capacity is of one pack; weights of two, messages and stashes come on top."""
    for memory in range(300_000, 600_000, 20_000):
        spec = asked("pp", device_memory=memory)
        try:
            _, chosen = theirs(spec, "pp")
        except ValueError:  # not even their rules find packs
            with pytest.raises(DoesNotFit, match="^by the published rules no packs of the model"):
                pp.plan_sizes(spec, profiles_of(spec))
            continue
        try:
            pp.plan_sizes(spec, profiles_of(spec))
        except DoesNotFit as error:
            refusal = error
            break
    else:
        pytest.fail("none of the plans exceeds its budget")
    told = re.fullmatch(
        rf"the published rules chose micro-batches of {chosen.u_forward} samples forward and "
        rf"{chosen.u_backward} backward in {len(chosen.forward)} and {len(chosen.backward)} packs, "
        r"which need (.*) of device memory: (.*) more than there is",
        str(refusal),
    )
    assert told
    assert refusal.tier == DEVICE
    needed = least_peak(chosen, spec)
    assert told.groups() == (format_bytes(needed), format_bytes(needed - memory))


def least_peak(chosen, spec) -> int:
    """Of those packs with no memory to spare."""
    sizes = ProfiledSizes(profiles_of(spec), tied=borrowed(make_model(spec.model)))
    setting = setting_of(spec.with_(device_memory=1), "pp")
    schedule = faithful.scheduled(faithful.packs_of(chosen), setting, sizes)
    return max(peak[DEVICE] for peak in validate(schedule).peak_bytes.values())


def test_pins_and_rules_exclude_each_other():
    spec = asked("pp", forward_size=2)
    with pytest.raises(ValueError, match="they are 2, auto, auto, auto, and must all be auto"):
        pp.plan_sizes(spec, profiles_of(spec))
    with pytest.raises(ValueError, match="packing is 'faithful'; with pp-swap it has no meaning"):
        asked("pp", method="pp-swap")
    with pytest.raises(ValueError, match="packing is 'loose'; it must be ours or faithful"):
        asked("pp", packing="loose")
