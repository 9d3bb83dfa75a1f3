"""Random schedules and costs, and slow independent answers to compare with."""

from workbench.schedule.action import Action, Kind, format_name
from workbench.schedule.schedule import DEVICE, Buffer, Schedule

LANES = ("compute", "h2d", "d2h", "host")


class Table:
    """A cost model given by tables; everything else is the neutral answer."""

    def __init__(self, seconds=None, slowdowns=None, default_s=1.0):
        self.by_name, self.slowdowns, self.default_s = seconds or {}, slowdowns or {}, default_s

    def seconds(self, action):
        return self.by_name.get(action.name, self.default_s)

    def slowdown(self, lane, busy):
        factor = 1.0
        for other in busy:
            factor *= self.slowdowns.get((lane, other), 1.0)
        return factor


def random_schedule(rng, num_actions=6, num_buffers=5, num_ranks=1, lanes=LANES):
    """Actions on random lanes with dependencies that cannot deadlock; not training."""
    after = [[] for _ in range(num_actions)]
    takes, frees = [[] for _ in after], [[] for _ in after]
    for i in range(num_actions):
        after[i] += [(j, False) for j in range(i) if rng.random() < 1 / (1 + i)]
        after[i] += [(j, True) for j in range(num_actions) if rng.random() < 0.3 / num_actions]
    buffers = {}
    for k in range(num_buffers):
        taker, freer = sorted((rng.randrange(num_actions), rng.randrange(num_actions)))
        buffers[f"b{k}"] = Buffer(tier=DEVICE, nbytes=rng.randrange(1, 9))
        takes[taker].append(f"b{k}")
        frees[freer].append(f"b{k}")
        after[taker].append((freer, True))
        if taker != freer:
            after[freer].append((taker, False))
    ranks = [rng.randrange(num_ranks) for _ in after]
    names = [format_name(Kind.REDUCE, i, rank=rank) for i, rank in enumerate(ranks)]
    return Schedule(
        name="made up",
        num_units=num_actions,
        num_microbatches=1,
        num_ranks=num_ranks,
        buffers=buffers,
        actions=tuple(
            Action(
                kind=Kind.REDUCE,
                unit=i,
                lane=rng.choice(lanes),
                rank=ranks[i],
                after=tuple(dict.fromkeys(names[j] + "@-1" * past for j, past in after[i])),
                takes=tuple(takes[i]),
                frees=tuple(frees[i]),
            )
            for i in range(num_actions)
        ),
    )


def random_costs(rng, schedule):
    """Durations of very different size, zeros and equal ones among them."""
    speed = {lane: rng.choice((0.01, 1.0, 100.0)) for _, lane in schedule.lanes}
    return Table(
        {
            a.name: speed[a.lane] * rng.choice((0.0, 1.0, 10.0, rng.random()))
            for a in schedule.actions
        }
    )


def longest_path(schedule, costs, steps):
    """(step, action) -> (start, end) where nothing slows down, straight from the definition."""
    known = {}

    def end(step, i):
        if (step, i) not in known:
            action = schedule.actions[i]
            same_lane = [
                j
                for j, other in enumerate(schedule.actions)
                if (other.rank, other.lane) == (action.rank, action.lane)
            ]
            place = same_lane.index(i)
            ends = [0.0]
            if place:
                ends.append(end(step, same_lane[place - 1])[1])
            elif step:
                ends.append(end(step - 1, same_lane[-1])[1])
            for text in action.after:
                name, _, back = text.partition("@")
                target = step + int(back or 0)
                if target >= 0:
                    ends.append(end(target, [a.name for a in schedule.actions].index(name))[1])
            known[step, i] = (max(ends), max(ends) + costs.seconds(action))
        return known[step, i]

    for step in range(steps):
        for i in range(len(schedule.actions)):
            end(step, i)
    return known


def heaviest_moment(graph, order, tier, steps):
    """The peak of one tier by trying every set of started and ended actions (slow)."""
    schedule, n = graph.schedule, len(graph.schedule.actions)
    nodes = range(n * steps)

    def size(names):
        return sum(
            schedule.buffers[name].nbytes for name in names if schedule.buffers[name].tier == tier
        )

    start = frozenset()
    seen, stack, worst = {(start, start)}, [(start, start)], 0
    while stack:
        started, ended = stack.pop()
        held = sum(size(graph.action(v).takes) for v in started)
        held -= sum(size(graph.action(v).frees) for v in ended)
        worst = max(worst, held)
        following = [(started, ended | {v}) for v in started - ended]
        following += [
            (started | {v}, ended)
            for v in nodes
            if v not in started and all(u in ended for u in nodes if order.before(u, v))
        ]
        for state in following:
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return worst
