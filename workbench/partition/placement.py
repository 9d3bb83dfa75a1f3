"""Items in stages and stages on devices, with what each stage costs, kept up while items move."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.partition.problem import SAME, Problem, Tensor, strongest

Key = tuple[float, float, float, float]
"""Bytes over memory, objective, sum of squared loads, message time; less is better."""


class Placement:
    """The state of a search. Stages are numbered so that no edge goes to an earlier one."""

    def __init__(self, problem: Problem, stage_of: Sequence[int], device_of: Sequence[int]) -> None:
        """`stage_of` is by item, `device_of` by stage."""
        self.problem, self.stage_of, self.device_of = problem, list(stage_of), list(device_of)
        self.bound = problem.bound
        """Milliseconds that no placement of the problem can beat, as far as is proved."""
        self.load = [0.0] * problem.devices
        """Milliseconds by device."""
        self.held = [0.0] * problem.devices
        """Bytes by device."""
        self.needed = [0.0] * problem.devices
        """Bytes by device of items alone, without inputs in flight and versions of weights."""
        behind = [*reversed(range(len(self.device_of)))]
        self.in_flight = [problem.in_flight(stages) for stages in behind]
        self.versions = [problem.versions(stages) for stages in behind]
        self.sent = [0.0] * len(self.device_of)
        self.received = [0.0] * len(self.device_of)
        self.members = [0] * len(self.device_of)
        for item, stage in enumerate(self.stage_of):
            self._hold(item, stage, 1)
        for tensor in problem.tensors:
            self._send(tensor, 1)

    @property
    def devices(self) -> list[int]:
        """The device of each item."""
        return [self.device_of[stage] for stage in self.stage_of]

    def cost(self, stage: int) -> float:
        """Milliseconds of a stage: its device's work, and messages beyond that."""
        work = self.load[self.device_of[stage]]
        return max(work, self.sent[stage]) + max(work, self.received[stage]) - work

    def objective(self) -> float:
        """Milliseconds of the slowest stage."""
        return max(self.cost(stage) for stage, count in enumerate(self.members) if count)

    def over(self) -> float:
        """Bytes by which devices are over their memory."""
        limit = self.problem.limit
        return sum(held - limit for held in self.held if held > limit)

    def key(self) -> Key:
        """What a search makes smaller."""
        squares = sum(load * load for load in self.load)
        return self.over(), self.objective(), squares, sum(self.sent)

    def move(self, item: int, stage: int) -> None:
        """Put an item into another stage."""
        touching = self.problem.touching[item]
        for tensor in touching:
            self._send(tensor, -1)
        self._hold(item, self.stage_of[item], -1)
        self.stage_of[item] = stage
        self._hold(item, stage, 1)
        for tensor in touching:
            self._send(tensor, 1)

    def reach(self, item: int) -> tuple[int, int]:
        """The first and the last stage in which no edge of an item goes to an earlier stage."""
        stages, problem = self.stage_of, self.problem
        before = (stages[other] for other in problem.predecessors[item])
        after = (stages[other] for other in problem.successors[item])
        return max(before, default=0), min(after, default=len(self.device_of) - 1)

    def numbered(self) -> Placement:
        """This placement without its empty stages, devices in the order in which stages use
        them."""
        used = [stage for stage, count in enumerate(self.members) if count]
        number = {stage: at for at, stage in enumerate(used)}
        name: dict[int, int] = {}
        devices = [name.setdefault(self.device_of[stage], len(name)) for stage in used]
        found = Placement(self.problem, [number[stage] for stage in self.stage_of], devices)
        found.bound = self.bound
        return found

    def _hold(self, item: int, stage: int, sign: int) -> None:
        device = self.device_of[stage]
        self.load[device] += sign * self.problem.work[item]
        needs, versions = self.problem.needs[item], self.versions[stage]
        self.needed[device] += sign * needs
        self.held[device] += sign * (needs + versions * self.problem.weights[item])
        self.members[stage] += sign

    def _send(self, tensor: Tensor, sign: int) -> None:
        home = self.stage_of[tensor.source]
        for stage, (forward, backward) in strongest(tensor, self.stage_of).items():
            same = self.device_of[home] == self.device_of[stage]
            self.sent[home] += sign * self.problem.milliseconds(forward, same_device=same)
            self.received[stage] += sign * self.problem.milliseconds(backward, same_device=same)
            self.held[self.device_of[stage]] += sign * self.in_flight[stage] * forward


def better(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first number that differs by more than rounding is less."""
    for a, b in zip(one, other, strict=True):
        if abs(a - b) > SAME * max(abs(a), abs(b), SAME):
            return a < b
    return False


def placed(problem: Problem, device_of: Sequence[int]) -> Placement:
    """Make stages of the items of each device, as few as the order of passes allows."""
    found = placed_within(problem, device_of, len(device_of))
    assert found is not None
    return found


def placed_within(problem: Problem, device_of: Sequence[int], most: int) -> Placement | None:
    """Stages of the items of each device, as few as the order of passes allows; None where that are
    more than `most`.

    An item joins the newest stage of its device that it can join: one from which no path leads
    through another stage into the item. Otherwise it begins a stage. So sets are split exactly
    where stages would wait for each other in a circle, however far apart these are.
    """
    stage_of: list[int] = []
    homes: list[int] = []
    before: list[int] = []  # of each stage, the stages that lead into it, as bits
    of_device: list[list[int]] = [[] for _ in range(problem.devices)]
    for item, device in enumerate(device_of):
        inputs = {stage_of[other] for other in problem.predecessors[item]}
        chosen = len(homes)
        for stage in reversed(of_device[device]):
            if not any(before[other] >> stage & 1 for other in inputs):
                chosen = stage
                break
        else:
            if chosen == most:
                return None
            of_device[device].append(chosen)
            homes.append(device)
            before.append(0)
        leading = 0
        for other in inputs - {chosen}:
            leading |= before[other] | 1 << other
        if leading & ~before[chosen]:
            before[chosen] |= leading
            before = [led | leading if led >> chosen & 1 else led for led in before]
        stage_of.append(chosen)
    # A stage that leads into another is led into by fewer.
    order = sorted(range(len(homes)), key=lambda stage: (before[stage].bit_count(), stage))
    number = {stage: at for at, stage in enumerate(order)}
    return Placement(
        problem, [number[stage] for stage in stage_of], [homes[each] for each in order]
    )
