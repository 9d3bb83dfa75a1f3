"""*a happens before b*: a's end precedes b's start in every execution, whatever the durations.

Computed with vector clocks (Mattern, *Virtual time and global states of distributed systems*,
1989), one component a lane: a node's clock holds how many of each lane's nodes have surely ended
when it starts. A lane runs in order, so one number a lane says it all, and a question costs one
comparison.
"""

from __future__ import annotations

from workbench.schedule.graph import Graph, topological


class Order:
    """*Happens before* on the nodes of a graph."""

    def __init__(self, graph: Graph) -> None:
        """Raises ScheduleError when the graph deadlocks."""
        n, num_lanes = len(graph.schedule.actions), len(graph.lane_actions)
        self.topological = topological(graph)
        self.lane_of = graph.lane_of * graph.steps
        place = [0] * n
        for actions in graph.lane_actions:
            for position, i in enumerate(actions):
                place[i] = position
        sizes = [len(graph.lane_actions[lane]) for lane in graph.lane_of]
        self.position = [
            step * size + position
            for step in range(graph.steps)
            for position, size in zip(place, sizes, strict=True)
        ]
        """Node -> its place on its lane, counted from the first step."""
        self.clocks: list[list[int]] = [[]] * graph.num_nodes
        """Node -> nodes of every lane that have surely ended when it starts."""
        waits = [
            [(graph.lane_of[j], back * sizes[j] + place[j], i - j - back * n) for back, j in others]
            for i, others in enumerate(graph.crossing)
        ]
        """Action -> (lane, place, distance) of what it waits for; the place as seen from step 0, so
        that of a step before the first is negative, and no clock lacks it."""
        ended = [[0] * num_lanes for _ in range(num_lanes)]
        for node in self.topological:
            step, i = divmod(node, n)
            mine = graph.lane_of[i]
            clock = ended[mine]
            for lane, at, distance in waits[i]:
                position = at + step * len(graph.lane_actions[lane])
                if clock[lane] <= position:
                    clock = list(map(max, clock, self.clocks[node - distance]))
                    clock[lane] = position + 1
            self.clocks[node] = clock
            ended[mine] = clock = clock.copy()
            clock[mine] += 1

    def before(self, first: int, second: int) -> bool:
        """True when `first` has surely ended when `second` starts."""
        return self.clocks[second][self.lane_of[first]] > self.position[first]
