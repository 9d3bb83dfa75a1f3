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
# rules, and beside the inputs that each policy stashes. The paper's own values were not
# available.
#
# | size | what runs | takes |
# |---|---|---|
# | smoke | nothing | seconds |
# | small | nothing | seconds |
# | paper | nothing | seconds |

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records; a relative one lies in the repository
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing

# %%
from IPython.display import display

from workbench.exhibits import open_exhibit

exhibit = open_exhibit("varuna_jitter", size, results)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
