"""Rules that a schedule must keep to be training, one by one.

Each rule is a statement on the order of actions, proved for every execution (order.py): every
forward and backward pass is made once and in the model's order, gradients are complete before they
are used, weights are updated before they are read. That what one rank makes comes to the rank that
reads it, and that copies of weights stay equal, is proved in sources.py, replicas.py and loans.py;
together they say that one step of the schedule computes what plain training computes.
"""

from __future__ import annotations

from workbench.schedule.action import (
    COMPUTE,
    GUESS,
    HOST,
    LATER,
    VERDICT,
    VISIT,
    Kind,
    lane_kind,
)
from workbench.schedule.buffers import on_rank, weights
from workbench.schedule.graph import ScheduleError
from workbench.schedule.passes import COMPUTING, B, Passes, R, W
from workbench.schedule.proof import Proof


def check_passes(proof: Proof, passes: Passes) -> None:
    """Forward, recomputation and backward run in the model's order, each on what it needs."""
    for unit in range(proof.schedule.num_units):
        if unit:
            for forward in passes.forwards(unit):
                for previous in passes.forward(unit - 1, forward):
                    proof.require(previous, forward, "its input may be missing")
        for backward in passes.backwards(unit):
            for forward in passes.forward(unit, backward):
                proof.require(forward, backward, "there is nothing to go back through")
            if unit + 1 < proof.schedule.num_units:
                for following in passes.input_gradients(unit + 1, backward):
                    proof.require(following, backward, "its output gradient may be missing")
        for again in proof.find(R, unit):
            _check_recomputed(proof, passes, unit, again)
            for backward in passes.backward(unit, again):
                proof.require(again, backward, "its recomputed activations may be missing")


def _check_recomputed(proof: Proof, passes: Passes, unit: int, again: int) -> None:
    """Check that recomputed passes were computed before. Another rank may be at it still: then it
    is enough that the input is there, from a recomputation too."""
    rank = proof.schedule.actions[again].rank
    repeated = proof.sharing(R, unit - 1, again) if unit else []
    for forward in passes.forward(unit, again):
        if proof.schedule.actions[forward].rank == rank:
            proof.require(forward, again, "there is nothing to recompute yet")
        elif unit and not (repeated and all(proof.before(i, again) for i in repeated)):
            for previous in passes.forward(unit - 1, again):
                proof.require(previous, again, "there is nothing to recompute yet")


def check_turns(proof: Proof) -> None:
    """Where two lanes take turns on a rank's device (turns.py), one has the forward passes and the
    other recomputations, each before its backward pass, and backward passes."""
    actions = proof.schedule.actions
    shared = {action.rank for action in actions if action.lane == LATER}
    for action in actions:
        forward = action.kind is Kind.FORWARD
        if action.lane == LATER and forward:
            raise ScheduleError(
                f"{action.name} queues on lane {LATER}, which takes turns with that of forward "
                f"passes: it belongs on lane {COMPUTE}"
            )
        if action.lane == COMPUTE and action.rank in shared and not forward:
            raise ScheduleError(
                f"{action.name} queues on lane {COMPUTE} of rank {action.rank}, which takes turns "
                f"with lane {LATER} and has forward passes only"
            )
        if action.lane == LATER and action.kind not in COMPUTING:
            raise ScheduleError(
                f"{action.name} queues on lane {LATER}, which has recomputations and backward "
                "passes only"
            )


def check_stashes(proof: Proof, passes: Passes) -> None:
    """A stashed input comes back before the unit's backward visit."""
    for unit in range(proof.schedule.num_units):
        for stash in proof.find(Kind.STASH, unit):
            if unit and proof.schedule.actions[stash].microbatch is not None:
                for previous in passes.forward(unit - 1, stash):
                    proof.require(previous, stash, "there is no activation yet")
            if not proof.sharing(Kind.FETCH, unit, stash):
                raise ScheduleError(f"what {proof.name(stash)} stashes never comes back")
        for fetch in proof.find(Kind.FETCH, unit):
            sources = proof.sharing(Kind.STASH, unit, fetch)
            if not sources:
                raise ScheduleError(f"{proof.name(fetch)} fetches what nobody stashes")
            for stash in sources:
                proof.require(stash, fetch, "the activation may not be there yet")
            visits = proof.sharing(R, unit, fetch)
            for visit in visits or passes.backward(unit, fetch):
                proof.require(fetch, visit, "its input may be missing")


def check_updates(proof: Proof, passes: Passes) -> None:
    """Each unit is updated once a rank, on complete gradients, before its next forward pass."""
    actions, units = proof.schedule.actions, range(proof.schedule.num_units)
    if not any(proof.find(Kind.UPDATE, unit) for unit in units):
        raise ScheduleError("no unit is updated")
    for unit in units:
        updates = proof.find(Kind.UPDATE, unit)
        if not updates:
            raise ScheduleError(f"unit {unit} is never updated, others are: U{unit} is missing")
        ranks: dict[int, int] = {}
        for update in updates:
            rank = actions[update].rank
            if rank in ranks:
                raise ScheduleError(
                    f"{proof.name(update)} updates unit {unit} a second time, "
                    f"after {proof.name(ranks[rank])}"
                )
            ranks[rank] = update
            _require_gradients(proof, passes, unit, update, "its gradients may be incomplete")
        for kind in COMPUTING:
            for i in proof.find(kind, unit):
                _require_version(proof, unit, i)


def _require_version(proof: Proof, unit: int, i: int) -> None:
    """A pass reads the weights that it declares: the updates before them have ended, and none that
    would overwrite them has begun. Where its rank keeps several versions, they last longer."""
    action, buffers = proof.schedule.actions[i], proof.schedule.buffers
    for update in final_updates(proof, unit, action.rank):
        proof.require(update, i, "its weights may be stale", steps=1 + action.stale)
    kept = buffers.get(on_rank(action.rank, weights(unit)))
    last = (kept.copies if kept is not None else 1) - 1 - action.stale
    for update in updates_for(proof, unit, action.rank):
        if proof.schedule.actions[update].rank == action.rank:
            proof.require(i, update, f"{action.name} may find fresher weights", steps=last)


def check_gradients_out(proof: Proof, passes: Passes) -> None:
    """Gradients leave the device when they are complete: for the unit, or for one micro-batch."""
    for unit in range(proof.schedule.num_units):
        for leaving in proof.find(Kind.GRAD_OUT, unit):
            wanted = passes.weight_gradients(unit)
            if proof.schedule.actions[leaving].microbatch is not None:
                wanted = [i for kind in (B, W) for i in proof.sharing(kind, unit, leaving)]
            for weight_gradient in wanted:
                proof.require(weight_gradient, leaving, "the gradients may be incomplete")


def check_sums(proof: Proof, passes: Passes) -> None:
    """A sum of gradients that leaves a device comes back before anything is added to it."""
    actions = proof.schedule.actions
    for unit in range(proof.schedule.num_units):
        places = {
            kind: {(actions[i].rank, actions[i].turn): i for i in proof.find(kind, unit)}
            for kind in (Kind.SUM_OUT, Kind.SUM_IN)
        }
        for (rank, turn), out in places[Kind.SUM_OUT].items():
            if (rank, turn + 1) not in places[Kind.SUM_IN]:
                raise ScheduleError(f"the sum that {proof.name(out)} takes away never comes back")
        for (rank, turn), back in places[Kind.SUM_IN].items():
            out = places[Kind.SUM_OUT].get((rank, turn - 1))
            if out is None:
                raise ScheduleError(f"{proof.name(back)} brings a sum that nobody took away")
            proof.require(out, back, "the sum may not be there yet")
            for adding in passes.weight_gradients(unit):
                if actions[adding].rank == rank and not proof.before(adding, out):
                    proof.require(back, adding, "the sum so far may be missing")


def check_norm(proof: Proof, passes: Passes) -> None:
    """Where there is a global norm, it sees every gradient, and every update waits for it, or is
    settled after it.
    """
    units = range(proof.schedule.num_units)
    norms = [i for i, action in enumerate(proof.schedule.actions) if action.kind is Kind.NORM]
    for norm in norms:
        for unit in units:
            _require_gradients(proof, passes, unit, norm, "the norm may lack its gradients")
        for unit in units:
            for update in final_updates(proof, unit, proof.schedule.actions[norm].rank):
                proof.require(norm, update, "it needs the clip coefficient")


def check_settled(proof: Proof) -> None:
    """Check that settled updates were made before, by the rank that settles them, and once."""

    def rank(i: int) -> int:
        return proof.schedule.actions[i].rank

    for unit in range(proof.schedule.num_units):
        settles, updates = proof.find(Kind.SETTLE, unit), proof.find(Kind.UPDATE, unit)
        if not settles:
            continue
        if len(settles) != len(updates):
            raise ScheduleError(
                f"unit {unit} has {len(updates)} updates and {len(settles)} verdicts on them"
            )
        pairs = zip(sorted(updates, key=rank), sorted(settles, key=rank), strict=True)
        for update, settle in pairs:
            proof.require(update, settle, "there is nothing to settle yet")


def check_moments(proof: Proof) -> None:
    """Check that moments follow the update of their weights, and that the next one finds them."""
    for unit in range(proof.schedule.num_units):
        for moments in proof.find(Kind.MOMENTS, unit):
            for update in final_updates(proof, unit, proof.schedule.actions[moments].rank):
                proof.require(update, moments, "the weights are updated first")
            for update in proof.find(Kind.UPDATE, unit):
                proof.require(moments, update, "it would read old moments", steps=1)


def _require_gradients(proof: Proof, passes: Passes, unit: int, reader: int, why: str) -> None:
    """All gradients of a unit are there when `reader` starts: on the host, where it runs there."""
    actions = proof.schedule.actions
    for weight_gradient in passes.weight_gradients(unit):
        proof.require(weight_gradient, reader, why)
    if lane_kind(actions[reader].lane) not in (COMPUTE, VISIT):
        leaving = proof.find(Kind.GRAD_OUT, unit)
        if len(proof.find(Kind.UPDATE, unit)) > 1:  # each rank has its share of them
            leaving = [i for i in leaving if actions[i].rank == actions[reader].rank] or leaving
        for i in leaving:
            proof.require(i, reader, why)


def updates_for(proof: Proof, unit: int, rank: int) -> list[int]:
    """The updates a rank depends on: its own, or all where it has none of its own, and all on the
    host, whose memory is one: several of them update a share each."""
    return _of_rank(proof, proof.find(Kind.UPDATE, unit), rank)


def _of_rank(proof: Proof, updates: list[int], rank: int) -> list[int]:
    own = [i for i in updates if proof.schedule.actions[i].rank == rank]
    shares = all(lane_kind(proof.schedule.actions[i].lane) == HOST for i in updates)
    return updates if shares else own or updates


def final_updates(proof: Proof, unit: int, rank: int) -> list[int]:
    """The actions after which a unit's weights are those of the next step: its verdicts where
    updates are settled, else its updates.
    """
    settles = proof.find(Kind.SETTLE, unit)
    return _of_rank(proof, settles, rank) or updates_for(proof, unit, rank)


def check_weights(proof: Proof) -> None:
    """Loads bring the weights of the last update, and compute works on what a load brought."""
    actions = proof.schedule.actions
    for unit in range(proof.schedule.num_units):
        loads = proof.find(Kind.LOAD, unit)
        evicts = proof.find(Kind.EVICT, unit)
        for load in loads:
            if not actions[load].takes:
                raise ScheduleError(f"{proof.name(load)} takes no buffer to load into")
            for update in final_updates(proof, unit, actions[load].rank):
                if _stays(proof, update):
                    _require_write_back(proof, update, evicts, load)
                else:
                    proof.require(update, load, "it may load stale weights", steps=1)
            for update in updates_for(proof, unit, actions[load].rank):
                if not _stays(proof, update):
                    proof.require(load, update, "it changes the weights being loaded")
        for update in proof.find(Kind.UPDATE, unit):
            if evicts and not _stays(proof, update):
                raise ScheduleError(
                    f"{proof.name(evicts[0])} overwrites the weights {proof.name(update)} updates"
                )
        brought = {(actions[load].rank, name) for load in loads for name in actions[load].takes}
        ranks = {rank for rank, _ in brought}
        for kind in COMPUTING:
            for i in proof.find(kind, unit):
                action = actions[i]
                touched = (*action.takes, *action.uses, *action.frees)
                if action.rank in ranks and not any((action.rank, t) in brought for t in touched):
                    raise ScheduleError(f"{action.name} uses no weights that a load of it brings")


def _stays(proof: Proof, update: int) -> bool:
    """Whether an update changes weights on the device only: no states go back to the host with
    it."""
    action = proof.schedule.actions[update]
    return lane_kind(action.lane) == COMPUTE or (
        lane_kind(action.lane) == VISIT and not proof.find(Kind.PUSH, action.unit)
    )


def _require_write_back(proof: Proof, update: int, evicts: list[int], load: int) -> None:
    """Weights updated on the device reach the host before they are loaded from there."""
    for evict in evicts:
        same = proof.before(update, evict) and proof.before(evict, load, steps=1)
        later = proof.before(update, evict, steps=1) and proof.before(evict, load)
        if same or later:
            return
    raise ScheduleError(
        f"{proof.name(load)} of the next step may load stale weights: "
        f"{proof.name(update)} changes them on the device and nothing evicts them in between"
    )


def check_states(proof: Proof) -> None:
    """States come from the disk, or from the host to the device, before the update, go back after
    it, and come again only when they are back.
    """
    for come, go in ((Kind.READ, Kind.SPILL), (Kind.PULL, Kind.PUSH)):
        for unit in range(proof.schedule.num_units):
            reads, spills = proof.find(come, unit), proof.find(go, unit)
            if reads or spills:
                _check_states_of(proof, unit, reads, spills)


def _check_states_of(proof: Proof, unit: int, reads: list[int], spills: list[int]) -> None:
    """Each visit serves the update, or its verdict, or (where there is one visit) both."""
    turn = {i: proof.schedule.actions[i].turn for i in reads + spills}
    back = {turn[spill]: spill for spill in spills}
    for read in reads:
        if turn[read] not in back:
            raise ScheduleError(f"what {proof.name(read)} reads is never written back")
    for spill in spills:
        if turn[spill] not in {turn[read] for read in reads}:
            raise ScheduleError(f"what {proof.name(spill)} writes is never read")
    updates, settles = proof.find(Kind.UPDATE, unit), proof.find(Kind.SETTLE, unit)
    serves = {0: updates + settles, GUESS: updates, VERDICT: settles}
    for read in reads:
        for update in serves[turn[read]]:
            proof.require(read, update, "its optimizer states may be missing")
            proof.require(update, back[turn[read]], "it may write old optimizer states")
        for spill in spills:
            later = turn[spill] >= turn[read]
            proof.require(spill, read, "it may read old states", steps=int(later))
