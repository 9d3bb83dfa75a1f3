# %% [markdown]
# # STRONGHOLD, figure 8b: scaling with depth
# **Claim** (section VI.B, page 9). With a fixed window, STRONGHOLD's time per iteration grows
# linearly with the layers.
#
# **How it is tested.** The same window trains ever deeper models; a straight line is fitted. Every
# run was simulated before it ran, from a profile of this machine, so the figure also shows what a
# prediction is worth.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | window 4, 4 to 12 layers of hidden 256, on any machine | half a minute |
# | small | window 8, 8 to 48 layers of hidden 1024, one GPU | minutes |
# | paper | window 15, 16 to 92 layers of hidden 2048 | seconds; simulated without a GPU |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine, minutes; small: one GPU; paper: simulated without a GPU
results: str = "results"  # folder of the run records; a relative one lies in the repository
force: bool = False  # run again what has a record

# %%
from IPython.display import display

from workbench.exhibits import open_exhibit

exhibit = open_exhibit("8b", size, results)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
