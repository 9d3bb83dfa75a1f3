# %% [markdown]
# # Varuna: its schedule, in theory and as it ran
# **Claim** (the paper's schedule figure, and the generator of the released code). One rule
# makes Varuna's lists, and as forward passes go first where a gradient is late, a step takes
# less time than GPipe's.
#
# **How it is tested.** The published lists, pass by pass, and the quanta of the published
# generator are held against those of this project's rule. Charts of four ranks and five micro-
# batches show a step in theory, forward one quantum and backward two: Varuna as its ranks run
# it, Varuna strictly in the order of its lists, and GPipe as Varuna's simulator has it. Below
# them is the last step of a run, and the schedule of that run simulated before it. Of the
# measured step its order is judged.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | two processes on this machine, one run | half a minute |
# | small | up to four GPUs, one run | a minute or two |
# | paper | up to four GPUs, one run; nothing without a GPU | a minute or two |

# %% tags=["parameters"]
size: str = "smoke"  # smoke, small or paper
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record already
layers: int = None  # layers of the model; None: the size's
hidden: int = None  # its hidden size; None: the size's
steps: int = None  # steps of a run; None: the size's
seed: int = None  # seed of weights and order of data; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "varuna_schedules", size, results, layers=layers, hidden=hidden, steps=steps, seed=seed,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
