# %% [markdown]
# # Varuna: policies under jitter
# **Claim** (EuroSys'22; the rules of the released simulator). Varuna's rule at run time, which
# lets forward passes go first where a gradient is late, loses the least to jitter; it pays in
# stashed inputs.
#
# **How it is tested.** Five policies are simulated on four ranks and sixteen micro-batches:
# Varuna under its rule, its lists without the rule, GPipe, and 1F1B that recomputes once a
# gradient has come or before. Passes and messages vary by draws of eight seeds, which are the
# same for every policy. Efficiencies stand beside those of an independent simulator of the same
# rules, beside steps of four processes whose passes and messages are paced by sleeping, and
# beside the inputs that each policy stashes. The paper's own values were not available.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | a paced step of each policy, most jitter | 15 seconds |
# | small | paced steps of eight seeds, each jitter | 9 minutes |
# | paper | as small; nothing without a GPU | 9 minutes |

# %% tags=["parameters"]
size: str = "smoke"  # smoke, small or paper
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # run again what has a record already
steps: int = None  # paced steps of a policy, each of a seed; None: the size's

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("varuna_jitter", size, results, steps=steps)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
