# %% [markdown]
# # Varuna: bubbles of its lists
# **Claim** (a figure among the tools of the released code). With nine micro-batches a stage, stages
# of a pipeline of any depth wait less than a tenth of their time.
#
# **How it is tested.** The rule that makes Varuna's lists is run again for each of the 54 published
# points: a forward pass and a recomputation take one quantum, a backward pass two. What is shown is
# the share of a step's quanta in which the first stage waits. One published point is wrong: its
# generator stopped after 1,000 quanta.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
ranks: str = None  # stages, such as "4, 8"; None: the published depths
microbatches: str = None  # micro-batches over stages, such as "1, 6"; None: as published

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("varuna_bubbles", size, results, ranks=ranks, microbatches=microbatches)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
