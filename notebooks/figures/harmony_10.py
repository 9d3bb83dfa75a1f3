# %% [markdown]
# # Harmony, figure 10: throughput of four models
# **Claim** (VLDB'22, figure 10: four models on 4 GPUs). Harmony-PP trains models larger than the
# devices at least as fast as Harmony-DP, most of all where the minibatch is small, and faster than
# either kind of parallelism that swaps without packs.
#
# **How it is tested.** Plans of the published models and minibatches on the published profiles,
# ours under our simulator and the authors' own by their estimate. Here Harmony-PP and Harmony-DP
# train a model of each family on the same devices, and DP Swap and PP Swap, which have as much
# memory and no packs, beside them; without GPUs speeds are shown, not judged.
# Reference estimates stand in for published values, which are not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a BERT, a GPT, a VGG and a ResNet, reduced, on 2 processes; GPT swaps too | a minute |
# | small | larger ones on the GPUs there are, swapping beside each, peers beside GPT | long |
# | paper | the published models on 4 GPUs capped at 11 GiB | long; simulated without GPUs |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
methods: str = None  # methods that run, such as "harmony-pp, harmony-dp"; None: all
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "harmony_10", size, results, batch=batch, steps=steps, methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
