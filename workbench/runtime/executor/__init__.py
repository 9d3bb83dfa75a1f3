"""Threads of one rank: one walks each lane, and waits for what the schedule says.

Events are those of the simulator, so that the error of a prediction is one join away. Several ranks
run one schedule, each its own lanes. Messages and collectives *meet*: all who take part begin at
once, so ranks that wait for each other in a ring are refused before they run. A rank waits on a
*board* (board.py) for actions of another rank of its host.

With a GPU one thread issues the compute lane and all lanes that wait for nothing on the host
(lane_threads.py), in one order that all ranks share: a thread for each lane passes the
interpreter's lock around, which took longer than short passes do. Streams go from a training of a
process to the next one (stream_pool.py). Where a schedule leaves an order of passes open, a rank
has two lanes of passes and one device, and one function says which pass is next, here and in the
simulator (device_turns.py).
"""
