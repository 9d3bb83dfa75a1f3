# %% [markdown]
# # Where the time of a step goes
# **Claim** (this project's goals). With a small batch, clipped steps wait for the host's memory,
# which copies and host updates fill together; with a large one the GPU computes nearly all the
# time.
#
# **How it is tested.** Of every run on this project's own runtime the benchmark keeps one measured
# step, event by event, in `results/published-here/<device>/lanes/`. This notebook draws four of
# them, 78 and 100 layers at batch 4 and 16: what each lane does when, and below it the bytes that
# copies and host updates move through host memory, beside the most that it gave when the machine
# was profiled. From both follows a bound that no order of the same work can beat; the table says
# which goals lie beyond it.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
machine: str = ""  # a folder in results/published-here; else the one with most rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("here_lanes", size, results, machine=machine)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
