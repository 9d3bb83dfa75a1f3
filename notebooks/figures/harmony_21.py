# %% [markdown]
# # Harmony, figure 21: losses of training
# **Claim** (VLDB'22, figure 21: GPT2-Medium on WikiText-103). Harmony trains GPT-2 as one device
# does: the loss curves of one device, data parallel and pipeline coincide.
#
# **How it is tested.** GPT-2 trains on text on one device in plain torch, and on several under
# Harmony-DP and Harmony-PP, from the same weights on the same samples. The paper's curves are not
# known; they are said to coincide, and nothing estimates losses: all that is drawn is measured
# here.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a GPT of 6 layers on 2 processes, 12 steps; shared with figure 12 | half a minute |
# | small | a GPT of 24 layers on the GPUs there are, 20 steps | minutes |
# | paper | GPT2-Medium, published packs on 4 GPUs, 100 steps | long; nothing without GPUs |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are
text: str = "stdlib"  # or a folder in WikiText's format, wiki.train.tokens or .raw, read as bytes
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
methods: str = None  # methods that run, such as "harmony-pp, harmony-dp"; None: all
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "harmony_21", size, results, text, layers=layers, hidden=hidden, batch=batch, steps=steps,
    methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
