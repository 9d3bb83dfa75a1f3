# %% [markdown]
# # Sweep
# Run the next cells; everything else is buttons. Choose methods, a model, data, device and budgets;
# any field takes one value, a list (`2, 4, 8`) or a range (`2..16 step 2`, `1..64 x2`). Before
# anything starts the page says how many runs that is, how long they take, what memory and disk they
# need, and which cannot fit and why.
#
# * A sweep runs in processes of its own: this kernel stays usable and may be restarted. The sweep
#   is cancelled with it, or goes on if you ask for that; the page finds it again either way, and
#   what is finished is never run twice.
# * A sweep is a file, `results/sweeps/<name>/sweep.json`, that `workbench sweep` runs as well. With
#   the parameter `sweep` set, this notebook runs one to its end without anybody in front of it.
# * From code: `panel.form.set(method="stronghold", layers="4..8")`, `panel.start()`,
#   `panel.table()`.

# %% tags=["parameters"]
sweep: str = ""  # a sweep file to run to its end now; a relative one lies here or in the repository
results: str = "results"  # folder of the run records, as --results of the command line

# %%
from workbench.ui.runs.panel import RunsTablePanel
from workbench.ui.sweeps.panel import open_panel

panel = open_panel(results, sweep)
panel.widget

# %%
RunsTablePanel(panel.store).widget

# %%
panel.table()
