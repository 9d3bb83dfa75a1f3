# %% [markdown]
# # Harmony, figure 17: time per iteration of GPT-2 of 10 to 40 billion parameters
# **Claim** (VLDB'22, figure 17: GPT-2 of 10 to 40 billion, minibatch 32). Harmony trains GPT-2 of
# 10 to 40 billion parameters on 1 to 8 cards of 11 GB, Harmony-PP in less time than Harmony-DP on
# any number of them.
#
# **How it is tested.** Plans on the published profiles for 1, 2, 4 and 8 cards, ours under our
# simulator and the authors' own by their estimate. Here a smaller GPT trains on as many devices as
# there are, on GPUs under ZeRO-Infinity too. Reference estimates stand in for published values,
# which are not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a GPT of 6 layers on 1 and 2 processes; shared with figure 12 | a minute |
# | small | a GPT of 24 layers on 1, 2, 4 and 8 GPUs, as far as there are so many | minutes |
# | paper | the published models on up to 8 GPUs capped at 11 GiB | long; simulated without GPUs |

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
    "harmony_17", size, results, layers=layers, hidden=hidden, batch=batch, steps=steps,
    methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
