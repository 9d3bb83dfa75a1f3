# %% [markdown]
# # STRONGHOLD, figure 9: effect of the window
# **Claim** (section VI.C, page 10). A larger window hides more of the transfers, until compute
# alone decides.
#
# **How it is tested.** One model at every window. The published runs wait for a layer's gradients
# to leave and for its update before its buffer is used again, so a small window costs them a third;
# here a buffer is free once its copy is out, and an update is waited for only before the layer's
# next load.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | 8 layers of hidden 256, windows 2 to 8, on any machine | half a minute |
# | small | 24 layers of hidden 1024, windows 2 to 15, one GPU | minutes |
# | paper | 32 layers of hidden 2048, windows 2 to 15 | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
window: str = None  # such as "2, 4, 8"; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # at size paper: a folder in results/published-here; else the fullest
overlay: bool = False  # at size paper: published values on the axes of those measured here

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "9", size, results, layers=layers, hidden=hidden, batch=batch, window=window, steps=steps,
    seed=seed, machine=machine, overlay=overlay,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
