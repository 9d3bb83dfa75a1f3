# %% [markdown]
# # Harmony, figure 8: balance of the devices by packs and micro-batches
# **Claim** (VLDB'22, figure 8: BERT-Large, minibatch 600). Packs and micro-batches decide how
# evenly the devices work: a setting whose packs cannot be dealt out evenly leaves devices idle and
# takes longer.
#
# **How it is tested.** The published settings under our simulator, beside what the authors' own
# estimator says of them, and what our search finds. Here Harmony-PP trains one model under an
# uneven and an even setting; the timeline says how busy each rank was. Reference estimates stand in
# for published values, which are not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | two settings of a GPT of 6 layers on 2 processes | half a minute |
# | small | two settings of a GPT of 24 layers on the GPUs there are | minutes |
# | paper | four settings of BERT-Large, minibatch 600, on 4 GPUs | long; simulated without GPUs |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("harmony_8", size, results, batch=batch, steps=steps, seed=seed)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
