# %% [markdown]
# # Harmony, figure 13: losses of fine-tuning
# **Claim** (VLDB'22, figure 13: BERT-Large on MRPC). Harmony fine-tunes BERT as one device does:
# the loss curves of one device, data parallel and pipeline coincide.
#
# **How it is tested.** BERT trains on pairs of sentences on one device in plain torch, and on
# several under Harmony-DP and Harmony-PP, from the same weights on the same samples. The paper's
# curves are not known; they are said to coincide, and nothing estimates losses: all that is drawn
# is measured here. The small BERT of size smoke learns hardly anything of its task in so few steps;
# whether the curves coincide does not depend on that.
#
# A folder in MRPC's format takes the place of the default text. A `vocab.txt` in it is used where
# the model has room for its words (small and paper); else the text is read as bytes.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a BERT of 4 layers on 2 processes, 12 steps | half a minute |
# | small | BERT-Large at sequence 128 on the GPUs there are, 20 steps | minutes |
# | paper | the same with published packs on 4 GPUs, 100 steps | minutes; without GPUs nothing |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are
text: str = "stdlib"  # or a folder in MRPC's format, msr_paraphrase_train.txt or train.tsv
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
methods: str = None  # methods that run, such as "harmony-pp, harmony-dp"; None: all
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "harmony_13", size, results, text, layers=layers, hidden=hidden, batch=batch, steps=steps,
    methods=methods, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
