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
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
window: int = None  # layers of STRONGHOLD's window; None: the size's
steps: int = None  # steps of a run; None: the size's
methods: str = None  # methods that run, such as "stronghold, l2l"; None: all
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # at size paper: a folder in results/published-here; else the fullest
overlay: bool = False  # at size paper: published values on the axes of those measured here

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "8a", size, results, layers=layers, hidden=hidden, batch=batch, window=window, steps=steps,
    methods=methods, seed=seed, machine=machine, overlay=overlay,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
