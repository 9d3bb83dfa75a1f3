# %% [markdown]
# # Harmony, table 1: the scheduler's search
# **Claim** (VLDB'22, table 1: four models on 4 GPUs, minibatch 64). The scheduler finds packs and
# micro-batches of four models of up to 515 layers in seconds; ours, which keeps memory as a
# constraint, finds plans no slower than the published ones.
#
# **How it is tested.** The published search and ours plan the same models from the same published
# profiles; one simulator, ours, tells the time of a step of both plans. The plans are kept in the
# repository. With `force` they are made again where the published profiles lie in the results
# folder, below `reference/harmony`. Reference estimates stand in for published values, which are
# not known; they are no measurements.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | nothing; kept plans are shown | seconds |
# | small | nothing; kept plans are shown | seconds |
# | paper | nothing; kept plans are shown | seconds; minutes with force and the profiles |

# %% tags=["parameters"]
size: str = "smoke"  # smoke: any machine; small: the GPUs there are; paper: simulated without
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record, and plan again where the published profiles are

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("harmony_table1", size, results)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
