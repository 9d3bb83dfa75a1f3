"""Weights that a unit borrows of a unit on another rank come and go complete.

Two messages of a step carry a loan: the borrower's gradients go to the owner, which adds them to
its own before the norm is taken and the owner is updated, and the new weights come back before the
borrower's next forward pass. A schedule names its loans by these messages alone, so a loan without
any is not missed here. Messages that take no place are a library's own, which no runtime of ours
carries.
"""

from __future__ import annotations

from workbench.schedule.action import Kind
from workbench.schedule.buffers import borrower_of
from workbench.schedule.graph import ScheduleError, partners
from workbench.schedule.passes import Passes
from workbench.schedule.proof import Proof
from workbench.schedule.rules import final_updates

Loan = tuple[int, int, int, int]
"""Owner, borrower, and the rank of each."""


def check_loans(proof: Proof, passes: Passes) -> None:
    """Lent weights are the last update's, and their gradients complete; each loan has both
    messages."""
    gradients = _messages(proof, Kind.RECV_GRAD)
    weights = _messages(proof, Kind.RECV)
    for loan in gradients.keys() ^ weights.keys():
        owner, borrower, *_ = loan
        lacks = "new weights" if loan in gradients else "gradients"
        raise ScheduleError(f"no message brings {lacks} of what unit {borrower} borrows of {owner}")
    for loan, (send, receive) in gradients.items():
        _check_gradients(proof, passes, loan, send, receive)
    for loan, (send, receive) in weights.items():
        _check_weights(proof, passes, loan, send, receive)


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
    for unit, message in ((borrower, send), (owner, receive)):
        for part in (*passes.weight_gradients(unit), *proof.find(Kind.REDUCE, unit)):
            proof.require(part, message, "the gradients may be incomplete")
    for part in passes.weight_gradients(borrower):
        proof.require(send, part, "it changes the gradients being sent", steps=1)
    actions = proof.schedule.actions
    for i, action in enumerate(actions):
        if action.kind is Kind.NORM:
            proof.require(receive, i, "the norm may lack lent gradients")
        elif (action.kind, action.unit, action.rank) == (Kind.UPDATE, owner, rank):
            proof.require(receive, i, "it may lack lent gradients")


def _check_weights(proof: Proof, passes: Passes, loan: Loan, send: int, receive: int) -> None:
    """An owner's weights leave when they are those of the next step, stay until they are sent, and
    are with the borrower when that step uses them."""
    owner, borrower, rank, _ = loan
    for update in final_updates(proof, owner, rank):
        proof.require(update, send, "it may send stale weights")
        proof.require(send, update, "it changes the weights being sent", steps=1)
    for forward in passes.forwards(borrower):
        proof.require(receive, forward, "its borrowed weights may be stale", steps=1)
