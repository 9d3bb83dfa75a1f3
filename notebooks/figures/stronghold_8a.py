# %% [markdown]
# # STRONGHOLD, figure 8a: throughput on one model
# **Claim** (section VI.B, page 9). On a model that fits everywhere, STRONGHOLD is faster than L2L,
# ZeRO-Offload and ZeRO-Infinity, and keeps most of Megatron-LM's speed.
#
# **How it is tested.** All five methods train the same model on the same samples from the same
# weights, with the same clipping and update rule; the report draws their losses over each other.
# Without a GPU the link between host and device is emulated for our own runtime, since a copy there
# would cost nothing; DeepSpeed's speed is shown, not judged.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | 8 layers of hidden 256, five steps, on any machine | about a minute |
# | small | 24 layers of hidden 1024, one GPU | minutes |
# | paper | 32 layers of hidden 2048 | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records; a relative one lies in the repository
force: bool = False  # run again what has a record

# %%
from IPython.display import display

from workbench.exhibits import open_exhibit

exhibit = open_exhibit("8a", size, results)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
