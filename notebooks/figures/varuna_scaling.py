# %% [markdown]
# # Varuna: more GPUs
# **Claim** (the paper's abstract, and scripts of the released code). Varuna trains models of up
# to 200 billion parameters on commodity machines, up to 18 times as fast as by splitting layers
# across them.
#
# **How it is tested.** GPT-2 XL on 1, 2 and 4 GPUs is what this project measured and committed,
# beside data parallelism and torch's pipelines. Beyond four GPUs all is simulated, with
# constants of a published machine: the configurations in the scripts of the released code, on
# up to three thousand GPUs. The paper's own values were not available, so only its abstract is
# quoted; what it claims over other systems on rented machines cannot be told here.

# %% tags=["parameters"]
size: str = "smoke"  # the folder the figure goes to: smoke, small or paper; the rows are the same
results: str = "results"  # folder of the run records, as --results of the command line
force: bool = False  # as in the other notebooks; nothing runs here, so it changes nothing
machine: str = ""  # a folder in results/published-here; else the one with most rows

# %%
from workbench.exhibits import open_exhibit

exhibit = open_exhibit("varuna_scaling", size, results, machine=machine)
exhibit.preview()

# %%
rows = exhibit.run(force=force)

# %%
exhibit.figure(rows)

# %%
display(exhibit.verdict(rows), exhibit.provenance())
