"""Keeps a job of many hosts going while hosts come and go (Varuna, EuroSys'22, job morphing).

    workbench varuna --> manager.py  (membership.py: who is there, which round, what next)
                           |  TCP, lines of JSON with a token; a store for each round
                         agent.py    one a host: forks the workers of each round
                           |  a local socket
                         worker.py   in each worker: what a training library calls

A *round* has a fixed number, set of hosts and shape. Whatever changes, ends it: everywhere, by
process group. The next one begins from the newest committed checkpoint, with who is there.
"""
