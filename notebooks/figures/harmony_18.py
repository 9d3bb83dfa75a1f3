# %% [markdown]
# # Harmony, figure 18: scaling to 8 devices
# **Claim** (VLDB'22, figure 18: GPT-2 of 10 to 40 billion, minibatch 32). Harmony-PP's speed grows
# nearly with the number of devices; Harmony-DP's saturates, since every device loads the weights
# over a link that all share.
#
# **How it is tested.** The times of figure 17 over those of one device. Processes that share a
# processor cannot show it, so without GPUs what runs here is shown, not judged. Reference estimates
# stand in for published values, which are not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | the runs of figure 17 | a minute, or none after it |
# | small | the runs of figure 17 | minutes, or none after it |
# | paper | the runs of figure 17 | long; simulated without GPUs |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
methods: str = None  # methods that run, such as "harmony-pp, harmony-dp"; None: all
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "harmony_18", size, results, layers=layers, hidden=hidden, batch=batch, steps=steps,
    methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
