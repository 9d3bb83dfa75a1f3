# %% [markdown]
# # Varuna: predictions of its steps
# **Claim** (this project's goals). How long a step takes in any shape, and what a device
# holds, is known before it is run; a shape is a number of stages, of replicas, and of samples
# in a micro-batch. So the fastest shape can be chosen.
#
# **How it is tested.** Each run is planned from layers and messages that were timed alone, and
# then made. Points on the diagonal were predicted well; beside them is the error of each shape,
# of its step and of its device's peak, in runs of this machine and in those that this project
# measured on GPUs and committed. On GPUs a step may be off by 5 % in the mean and by 12 % at
# worst, the peak by 5 %; of shapes on as many GPUs the one that is predicted to be fastest loses
# at most 3 %. Ranks that share a processor disturb each other: there the range is judged that a
# plan prints, and no choice.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | four shapes on up to two processes of this machine | half a minute to two minutes |
# | small | all shapes of up to four GPUs, four sizes of micro-batches | half an hour |
# | paper | all shapes of up to four GPUs, GPT-2 XL; nothing without a GPU | half an hour |

# %% tags=["parameters"]
size: str = "smoke"  # smoke, small or paper
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record already
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # a folder in results/published-here; else all that have rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "varuna_accuracy", size, results, layers=layers, hidden=hidden, batch=batch, steps=steps,
    seed=seed, machine=machine,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
