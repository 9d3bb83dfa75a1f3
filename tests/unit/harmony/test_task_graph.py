"""Task graphs: placement, media, what stays on a GPU, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests.unit.harmony.toy_model import LAYERS, configurations, profile
from tests.unit.harmony.verify import verify
from workbench.core.division import packs_of
from workbench.methods.harmony.published import build as published
from workbench.methods.harmony.published.bound import least_seconds
from workbench.methods.harmony.published.estimate import estimate
from workbench.methods.harmony.published.events import Deadlock
from workbench.methods.harmony.published.packing import manual
from workbench.methods.harmony.published.profiles import Direction
from workbench.methods.harmony.published.tasks import (
    Configuration,
    Medium,
    Mode,
    TaskGraph,
    TaskKind,
    What,
)
from workbench.methods.harmony.published.timing import Server, simulate

F, B, U = TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.UPDATE
SERVER = Server(swap_bytes_per_s=500, p2p_bytes_per_s=900, message_bytes_per_s=700)


def build(configuration: Configuration) -> TaskGraph:
    """The graph, in which all holds that must."""
    graph = published.build(configuration)
    verify(graph)
    return graph


def chosen(mode=Mode.PP, *, gpus=2, minibatch=8, u=(2, 2), forward=(2, 2, 2), backward=(2,) * 4):
    return Configuration(
        mode=mode,
        gpus=gpus,
        minibatch=minibatch,
        u_forward=u[0],
        forward=packs_of(forward),
        u_backward=u[1],
        backward=packs_of(backward),
    )


def test_pipeline_tasks_are_dealt_out_in_turn_and_wrap_around():
    names = [task.name for task in build(chosen(gpus=3)).tasks]
    assert names == [
        "F[0:2]@0", "F[2:4]@1", "F[4:6]@2",
        "B[6:8]@0", "U[6:8]@0", "B[4:6]@1", "U[4:6]@1", "B[2:4]@2", "U[2:4]@2", "B[0:2]@0",
        "U[0:2]@0",
    ]  # fmt: skip


def test_replicas_repeat_all_tasks_with_their_share():
    graph = build(chosen(Mode.DP, gpus=3, minibatch=8))
    assert [task.device for task in graph.tasks].count("gpu:1") == 7
    assert [task.microbatches for task in graph.tasks if task.pack == range(6, 8)] == [
        sizes for share in ((2, 1), (2, 1), (2,)) for sizes in (share, ())
    ]
    assert not any(
        flow.medium is Medium.P2P for task in graph.tasks for flow in (*task.inputs, *task.outputs)
    )


def media(graph, what):
    """(producing task, layer, medium) of what passes between tasks."""
    return [
        (task.name, flow.layers.start, flow.medium)
        for task in graph.tasks
        for flow in task.flows_out(what)
    ]


def test_what_crosses_goes_from_gpu_to_gpu_and_stashes_through_the_host():
    graph = build(chosen(forward=(3, 3)))
    assert media(graph, What.X) == [
        ("F[0:3]@0", 0, Medium.MESSAGE),
        ("F[0:3]@0", 2, Medium.MESSAGE),  # in the middle of the pack
        ("F[0:3]@0", 3, Medium.P2P),
        ("F[3:6]@1", 4, Medium.MESSAGE),
        ("F[3:6]@1", 6, Medium.P2P),
    ]
    assert media(graph, What.DX) == [
        ("B[6:8]@0", 6, Medium.P2P),
        ("B[4:6]@1", 4, Medium.P2P),
        ("B[2:4]@0", 2, Medium.P2P),
    ]


def test_the_input_of_the_loss_pack_is_a_message_where_sizes_differ():
    last = media(build(chosen(forward=(3, 3), u=(4, 2))), What.X)[-1]
    assert last == ("F[3:6]@1", 6, Medium.MESSAGE)


def test_on_one_gpu_and_in_data_parallel_activations_are_swapped():
    for graph in (build(chosen(gpus=1)), build(chosen(Mode.DP))):
        assert media(graph, What.X)[-1][2] is Medium.SWAP
        assert {medium for _, _, medium in media(graph, What.DX)} == {Medium.SWAP}


def test_layers_of_neighbouring_forward_and_backward_tasks_stay_on_the_gpu():
    # GPU 1 runs layers 2 and 3 as its last forward and 1 to 3 as its first backward.
    graph = build(chosen(gpus=3, forward=(2, 2), backward=(1, 3, 4), u=(1, 1)))
    forward, backward = (
        next(task for task in graph.tasks if task.kind is kind and 3 in task.pack)
        for kind in (F, B)
    )
    assert (forward.name, backward.name) == ("F[2:4]@1", "B[1:4]@0")
    graph = build(chosen(gpus=2, forward=(2, 2), backward=(1, 3, 4), u=(1, 1)))
    forward, backward = (
        next(task for task in graph.tasks if task.kind is kind and 3 in task.pack)
        for kind in (F, B)
    )
    assert (forward.name, backward.name) == ("F[2:4]@1", "B[1:4]@1")
    weights = [(flow.medium, flow.layers) for flow in backward.flows_in(What.WEIGHTS)]
    assert weights == [(Medium.PINNED, range(2, 4)), (Medium.SHARED, range(1, 2))]
    assert [flow.peer for flow in forward.flows_out(What.WEIGHTS)] == [backward.index]


@given(configurations())
def test_every_configuration_gives_a_graph_that_runs(configuration):
    """Verified, free of deadlocks, all work done once, weights moved as the paper says."""
    graph = build(configuration)
    model = profile()
    whole = range(LAYERS)
    replicas = configuration.gpus if configuration.mode is Mode.DP else 1
    before = sum(model.swapped_bytes(pack) for pack in configuration.forward)
    for prefetch in (False, True):
        found = estimate(graph, model, SERVER, prefetch=prefetch)
        work = sum(
            sum(
                model.at(direction, size).time(pack)
                for size in task.microbatches
                for pack in [task.pack]
            )
            for kind, direction in ((F, Direction.FORWARD), (B, Direction.BACKWARD))
            for task in (graph.of_rank(0) if replicas > 1 else graph.tasks)
            if task.kind is kind
        )
        computed = found.compute_seconds
        assert (computed[0] if replicas > 1 else sum(computed)) == pytest.approx(work)
        assert found.seconds > max(computed)
        assert found.seconds > least_seconds(configuration, model, SERVER) * (1 - 1e-12)
        assert all(0 <= idle <= 1 for idle in found.idle)
        assert found.compute_share <= 1 + 1e-9
        moved = found.volumes
        weights = model.swapped_bytes(whole)
        charged = replicas * (before + weights)
        assert moved.gradients_out == weights
        assert moved.weights_in <= charged
        if configuration.mode is Mode.DP or configuration.gpus == 1:
            assert moved.weights_in == charged
            assert moved.p2p == 0


def test_bytes_do_not_depend_on_the_number_of_micro_batches():
    whole, cut = (estimate(build(chosen(u=u)), profile(), SERVER).volumes for u in ((8, 8), (1, 1)))
    assert whole == cut


def test_prefetching_hides_transfers():
    graph, slow = build(chosen(Mode.DP, minibatch=16)), replace(SERVER, swap_bytes_per_s=5)
    serial, ahead = (simulate(graph, profile(), slow, prefetch=on).seconds for on in (0, 1))
    assert ahead < 0.9 * serial


@pytest.mark.parametrize(("gpus", "crosses"), [(1, False), (2, False), (3, True)])
def test_messages_cost_between_gpus_only(gpus, crosses):
    graph = build(chosen(gpus=gpus))  # on two GPUs, every stash returns to where it was made
    slow = replace(SERVER, message_bytes_per_s=0.1)
    usual, late = (simulate(graph, profile(), server).seconds for server in (SERVER, slow))
    assert (late > 1.5 * usual) == crosses
    assert (late == usual) != crosses


def test_one_gpu_alone_takes_the_sum_of_everything():
    """One pack, one micro-batch, nothing to overlap: the estimate is a sum."""
    model = profile()
    graph = build(chosen(gpus=1, minibatch=4, u=(4, 4), forward=(), backward=(8,)))
    weights = model.swapped_bytes(range(8))
    # bring in weights and data, compute, take out gradients, update on the host
    expected = weights / 500 + 4 * 10 / 500 + 4 * 3 * 36 + weights / 500 + 8 * 0.5
    timing = simulate(graph, model, SERVER)
    assert timing.seconds == pytest.approx(expected)
    assert timing.compute_seconds == pytest.approx((4 * 3 * 36,))


def test_memory_follows_the_published_equation():
    model = profile()
    found = estimate(build(chosen(gpus=2, u=(2, 2), forward=(3, 3))), model, SERVER)
    # GPU 1: forward of layers 3 to 5, which stashes layer 4, or backward of layers 4 and 5.
    forward = 3 * (100 + 40) - 2 * (14 + 15) + 2 * (13 + 14 + 16)
    backward = 2 * (300 + 100) - 2 * 15 + 2 * (2 * 14 + 16 + 14)
    assert found.memory_bytes[1] == max(forward, backward) == backward


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward": (2, 2)}, r"the forward packs 0:2, 2:4, 6:8 do not cover layers 0 to 7 once"),
        ({"forward": (2, 2, 3)}, "the forward packs 0:2, 2:4, 4:7, 6:8 do not cover"),
        ({"u": (9, 2)}, "cannot cut 8 samples into micro-batches of 9"),
        ({"u": (2, 0)}, "cannot cut 8 samples into micro-batches of 0"),
        ({"backward": ()}, "one backward pack at least"),
        ({"mode": Mode.DP, "gpus": 9}, "8 samples leaves some of 9 GPUs without any"),
    ],
)
def test_configurations_that_train_nothing_whole_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        build(chosen(**change))


def changed(graph: TaskGraph, place: int, **fields) -> TaskGraph:
    tasks = list(graph.tasks)
    tasks[place] = replace(tasks[place], **fields)
    return replace(graph, tasks=tuple(tasks))


def without(flows, what):
    return tuple(flow for flow in flows if flow.what is not what)


def test_hand_made_graphs_are_refused_with_the_task_that_cannot_run():
    graph = build(chosen(gpus=3))
    verify(graph)
    stash = next(task for task in graph.tasks if task.name == "B[4:6]@1")
    source = graph.tasks[2]
    cases = [
        (
            changed(graph, stash.index, inputs=without(stash.inputs, What.X)),
            r"F\[4:6\]@2 gives X of layer 4 by message, but B\[4:6\]@1 does not take it",
        ),
        (
            changed(graph, 2, outputs=without(source.outputs, What.X)),
            r"B\[6:8\]@0 takes X of layer 6 by p2p, but F\[4:6\]@2 does not give it",
        ),
        (
            changed(graph, 0, inputs=without(graph.tasks[0].inputs, What.WEIGHTS)),
            r"F\[0:2\]@0 cannot run: nothing gives it W of layer 0, W of layer 1",
        ),
        (changed(graph, 0, microbatches=(2, 2)), "layer 0 sees 4 samples in its forward tasks"),
        (changed(graph, 0, microbatches=()), r"F\[0:2\]@0 has no micro-batches"),
        (changed(graph, 0, rank=7), r"F\[0:2\]@7 is on rank 7 of 3"),
        (changed(graph, 0, rank=1), r"by p2p, but F\[2:4\]@1 is on the same rank"),
        (changed(graph, 0, index=5), "lists task 0, 1, ... in the order"),
    ]
    for broken, message in cases:
        with pytest.raises(ValueError, match=message):
            verify(broken)


@pytest.mark.parametrize("mode", Mode)
def test_whatever_a_task_does_not_give_is_missed(mode):
    graph = build(chosen(mode, gpus=3))
    for task in graph.tasks:
        for place in range(len(task.outputs)):
            kept = task.outputs[:place] + task.outputs[place + 1 :]
            with pytest.raises(ValueError, match=r"does not give"):
                verify(changed(graph, task.index, outputs=kept))


def test_a_stash_missing_at_both_ends_is_missed_by_its_task():
    graph = build(chosen(gpus=3))
    taker = next(task for task in graph.tasks if task.name == "B[4:6]@1")
    graph = changed(graph, taker.index, inputs=without(taker.inputs, What.X))
    giver = graph.tasks[2]
    kept = tuple(flow for flow in giver.outputs if flow.medium is not Medium.MESSAGE)
    with pytest.raises(ValueError, match=r"B\[4:6\]@1 cannot run: nothing gives it X of layer 4"):
        verify(changed(graph, 2, outputs=kept))


def reordered(graph: TaskGraph, order: list[int]) -> TaskGraph:
    """The same tasks in another order, renumbered."""
    new = {old: index for index, old in enumerate(order)}

    def renamed(flows):
        return tuple(
            flow if flow.peer is None else replace(flow, peer=new[flow.peer]) for flow in flows
        )

    return replace(
        graph,
        tasks=tuple(
            replace(
                graph.tasks[old],
                index=index,
                inputs=renamed(graph.tasks[old].inputs),
                outputs=renamed(graph.tasks[old].outputs),
            )
            for index, old in enumerate(order)
        ),
    )


def test_a_graph_that_deadlocks_is_found_and_the_circle_named():
    # GPU 0 would run the loss pack before the first forward pack that it waits for.
    graph = build(chosen(gpus=3))
    order = [3, 4, 0, 1, 2, *range(5, len(graph.tasks))]
    deadlocked = reordered(graph, order)
    verify(deadlocked)
    for prefetch in (False, True):
        with pytest.raises(Deadlock, match=r"deadlocks: .* waits for .*\[6:8\]@0"):
            simulate(deadlocked, profile(), SERVER, prefetch=prefetch)


def test_an_update_before_its_gradients_is_refused():
    graph = build(chosen(gpus=3))
    order = [0, 1, 2, 4, 3, *range(5, len(graph.tasks))]
    with pytest.raises(ValueError, match=r"U\[6:8\]@0 .* dW .* but B\[6:8\]@0 comes later"):
        verify(reordered(graph, order))


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(ValueError, match="8 layers and the profile of made up 5"):
        simulate(build(chosen()), profile(5), SERVER)


def test_manual_packs_make_a_configuration():
    backward = manual(8, 3)
    graph = build(replace(chosen(), forward=backward[:-1], backward=backward))
    assert [task.name for task in graph.tasks if task.kind is not U] == [
        "F[0:2]@0", "F[2:5]@1", "B[5:8]@0", "B[2:5]@1", "B[0:2]@0",
    ]  # fmt: skip
