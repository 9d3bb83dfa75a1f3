"""Messages and sums between ranks, and the process groups that carry them.

Between ranks of one host a message is one copy into the receiver's inbox (inbox.py), not a pair of
NCCL's kernels. Hosts wait until it has been *issued*, where the proof is; that it has come, devices
see by events shared between processes (signals.py). Each of a few places is announced as soon as it
is free.

Between hosts messages go through torch.distributed (group_transport.py). A receive of NCCL's is
issued only when its send has been, which gloo tells: a device that spins for what nobody has issued
may hang, since loading a kernel waits for all that run.

groups.py adds up gradients for the engine whose layers visit (passes/pack_engine.py). The engine of
stages is given its sum: methods/pipeline/stage_pipeline.py makes it. Ranks tell each other JSON or
tensors (groups.py), never a pickle; groups listen on loopback where one host is all (loopback.py),
and prove their connections (meeting.py). A wait of the host's ends where these are cut (cut.py).
"""
