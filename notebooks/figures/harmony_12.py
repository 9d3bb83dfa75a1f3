# %% [markdown]
# # Harmony, figure 12: swap volume of a step
# **Claim** (VLDB'22, figure 12: GPT2-XL on 4 GPUs). Harmony-PP moves about twice the weights in and
# once the gradients out whatever the number of devices; Harmony-DP brings the weights to every
# device.
#
# **How it is tested.** The runtime counts every byte that crosses the link between host and device,
# weights, gradients and activations apart. Runs on 1, 2 and more devices are held against the plan
# and against the bounds of three and 2 N + 1 times the weights, and where packs are pinned against
# the formula of those packs. Beside them stand the volumes of the authors' stored schedules.
# Reference estimates stand in for published values, which are not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a GPT of 6 layers on 1 and 2 processes | a minute |
# | small | a GPT of 24 layers on the GPUs there are, baselines beside | minutes |
# | paper | GPT2-XL on up to 8 GPUs | long; simulated without GPUs |

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
    "harmony_12", size, results, layers=layers, hidden=hidden, batch=batch, steps=steps,
    methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
