# %% [markdown]
# # STRONGHOLD, figure 6a: the largest trainable model
# **Claim** (section VI.A, page 8). Within the same device and host memory, STRONGHOLD trains a
# larger model than Megatron-LM, L2L, ZeRO-Offload and ZeRO-Infinity.
#
# **How it is tested.** For each method a search over the number of layers: every probe is a real
# run of three steps in a process of its own, under a budget of device and host memory. The search
# begins where the planner says the limit is, and ends when one more layer is seen to fail. Running
# out of memory is a result, with a record like any other.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | hidden 256 in 64 MiB of device and 170 MiB of host memory | a minute |
# | small | hidden 1024 in 6 GiB and 16 GiB, one GPU | minutes |
# | paper | hidden 2048 in 32 GiB and 90 GB | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record
hidden: int = None  # its hidden size; None: the size's
batch: int = None  # samples of a step; None: the size's
window: int = None  # layers of STRONGHOLD's window; None: the size's
methods: str = None  # methods that run, such as "stronghold, l2l"; None: all
seed: int = None  # seed of weights and order of data; None: the size's
machine: str = ""  # at size paper: a folder in results/published-here; else the fullest

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit(
    "6a", size, results, hidden=hidden, batch=batch, window=window, methods=methods,
    seed=seed, machine=machine,
)  # fmt: skip
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
