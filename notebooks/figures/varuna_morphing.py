# %% [markdown]
# # Varuna: hosts come and go
# **Claim** (the paper's timeline of morphing, and a trace of a user of its code). A job follows
# the machines that there are, by changing its pipelines and replicas, and trains as if nothing
# had happened.
#
# **How it is tested.** The trace says how many GPUs there were, and when. A job of Varuna's
# launcher trains a small GPT over a machine list that is edited as the trace says, a slot a host;
# changes of the list are notices. Each round has as few stages over one as divide its hosts: four
# are 2 x 2, three are 3 x 1. The same script then trains as long on one worker, undisturbed.
# Losses are held against its losses, and each step is counted. The paper's own timeline was not
# available.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | up to four processes, the first 1,764 s of the trace 60-fold | a minute or two |
# | small | as many hosts as there are GPUs, the whole trace tenfold | half an hour |
# | paper | as small; nothing without a GPU | half an hour |

# %% tags=["parameters"]
size: str = "smoke"  # smoke, small or paper
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record already
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "varuna_morphing", size, results, layers=layers, hidden=hidden, batch=batch, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
