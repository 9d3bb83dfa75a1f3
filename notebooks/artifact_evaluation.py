# %% [markdown]
# # Artifact evaluation
# Run the next two cells; everything else is buttons. Each claim has a section: what the paper says
# and measured, what will run here and how long it takes, Run and Cancel, progress, the figure that
# fills in as points arrive, and a verdict: it holds, it does not, or it cannot be told here, and
# why.
#
# * Nothing runs in this notebook's kernel, so it stays usable, and may be restarted: runs end with
#   it, or go on if you ask for that, and this page finds them again.
# * What has been measured is neither run again nor deleted. Hollow marks are published, hatched
#   ones simulated, filled ones measured.
# * Hands-on time is a few minutes. At size `smoke` all claims together take about 11 minutes on two
#   cores without a GPU and under 3 GiB of memory; `small` needs a GPU; `paper` is simulated without
#   one.

# %% tags=["parameters"]
size: str = "smoke"  # smoke, small or paper
results: str = "results"  # folder of the run records, as --results of the command line

# %%
from workbench.ui.evaluation.panel import EvaluationPanel

panel = EvaluationPanel(size, results)
panel.widget
