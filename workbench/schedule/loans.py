"""Weights that a unit borrows of a unit on another rank come and go complete.

Two messages of a step carry a loan: the borrower's gradients go to the owner, which adds them to
its own before the norm is taken and the owner is updated, and the new weights come back before the
borrower's next forward pass. A schedule names its loans by these messages alone, so a loan without
any is not missed here. Messages that take no place are a library's own, which no runtime of ours
carries. A loan between two units of one rank needs no message: the borrower's last backward pass
takes the place of the gradients, and its update copies the weights.

Whoever frees the place of gradients adds them. Weights are used where they arrive, or else the
borrower's update installs them. Whoever brings them declares their version, as the updates that
they lack beside those that the borrower's own weights lack (`stale`).
"""

from __future__ import annotations

from workbench.schedule.action import Kind
from workbench.schedule.buffers import (
    borrower_of,
    lent_gradients,
    lent_weights,
    loan_of,
    on_rank,
)
from workbench.schedule.graph import ScheduleError, partners
from workbench.schedule.passes import Passes
from workbench.schedule.proof import Proof
from workbench.schedule.rules import final_updates

Loan = tuple[int, int, int, int]
"""Owner, borrower, and the rank of each."""


def check_loans(proof: Proof, passes: Passes) -> None:
    """Lent weights are the last update's, and their gradients complete; each loan has both
    messages."""
    local = _local(proof, passes)
    gradients = _messages(proof, Kind.RECV_GRAD) | {loan: pair[0] for loan, pair in local.items()}
    weights = _messages(proof, Kind.RECV) | {loan: pair[1] for loan, pair in local.items()}
    for loan in gradients.keys() ^ weights.keys():
        owner, borrower, *_ = loan
        lacks = "new weights" if loan in gradients else "gradients"
        raise ScheduleError(f"no message brings {lacks} of what unit {borrower} borrows of {owner}")
    for loan, (send, receive) in gradients.items():
        _check_gradients(proof, passes, loan, send, receive)
    for loan, (send, receive) in weights.items():
        _check_weights(proof, passes, loan, send, receive)


def _local(proof: Proof, passes: Passes) -> dict[Loan, tuple[tuple[int, int], tuple[int, int]]]:
    """Loan within a rank -> the backward pass that leaves gradients, and the update that copies
    weights, each as what sends and what receives."""
    found, actions = {}, proof.schedule.actions
    for i, action in enumerate(actions):
        for label in action.takes if action.kind is Kind.BACKWARD else ():
            if (loan := loan_of(label)) is not None:
                for update in proof.find(Kind.UPDATE, action.unit):
                    pairs = (i, i), (update, update)
                    found[*loan, action.rank, action.rank] = pairs
    return found


def _messages(proof: Proof, kind: Kind) -> dict[Loan, tuple[int, int]]:
    """Loan -> the send and the receive of its message of a kind."""
    schedule, found = proof.schedule, {}
    partner = partners(schedule)
    index = {action.name: i for i, action in enumerate(schedule.actions)}
    for i, action in enumerate(schedule.actions):
        of_weights = action.microbatch is None and action.samples is None
        if action.kind is kind and of_weights and action.takes:
            send = partner[action.name]
            ranks = (send.rank, action.rank) if kind is Kind.RECV else (action.rank, send.rank)
            found[action.unit, borrower_of(action), *ranks] = index[send.name], i
    return found


def _check_gradients(proof: Proof, passes: Passes, loan: Loan, send: int, receive: int) -> None:
    """A borrower's gradients leave when they are complete, and are added to the owner's complete
    ones before anything reads the sum."""
    owner, borrower, rank, _ = loan
    actions = proof.schedule.actions
    adds = _frees(proof, receive, lent_gradients(owner, borrower))
    for unit, message in ((borrower, send), (owner, adds)):
        for part in (*passes.weight_gradients(unit), *proof.find(Kind.REDUCE, unit)):
            if part != message:
                proof.require(part, message, "the gradients may be incomplete")
    if adds != receive:
        proof.require(receive, adds, "lent gradients may be missing")
    for part in passes.weight_gradients(borrower):
        proof.require(send, part, "it changes the gradients being sent", steps=1)
    for i, action in enumerate(actions):
        if action.kind is Kind.NORM:
            proof.require(adds, i, "the norm may lack lent gradients")
        elif (action.kind, action.unit, action.rank) == (Kind.UPDATE, owner, rank) and i != adds:
            proof.require(adds, i, "it may lack lent gradients")


def _check_weights(proof: Proof, passes: Passes, loan: Loan, send: int, receive: int) -> None:
    """An owner's weights leave in the version that is declared, stay until they are sent, and are
    with the borrower when the next step uses them."""
    owner, borrower, rank, _ = loan
    actions = proof.schedule.actions
    late = actions[receive].stale
    if actions[send].stale != late:
        raise ScheduleError(
            f"{actions[send].name} sends weights that lack {actions[send].stale} updates, "
            f"{actions[receive].name} declares {late}"
        )
    for update in final_updates(proof, owner, rank):
        proof.require(update, send, "it may send stale weights", steps=late)
        proof.require(send, update, "it changes the weights being sent", steps=1 - late)
    installs = _frees(proof, receive, lent_weights(owner, borrower))
    if actions[installs].kind is not Kind.UPDATE:
        installs = receive
    elif installs != receive:
        proof.require(receive, installs, "the weights to install may be missing")
        for part in passes.weight_gradients(borrower):
            proof.require(part, installs, f"{actions[part].name} may find fresher weights")
    for forward in passes.forwards(borrower):
        steps = 1 + actions[forward].stale
        proof.require(installs, forward, "its borrowed weights may be stale", steps=steps)


def _frees(proof: Proof, receive: int, label: str) -> int:
    """The action that frees a place of lent weights or gradients; itself where nobody does."""
    actions = proof.schedule.actions
    text = on_rank(actions[receive].rank, label)
    return next((i for i, action in enumerate(actions) if text in action.frees), receive)
