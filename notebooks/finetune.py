# %% [markdown]
# # Fine-tune
# A decoder of Hugging Face's goes on from the weights in a folder: it is planned, trained on rows
# with its losses drawn meanwhile, evaluated on rows that are held out, exported, and asked to
# write. As it stands the notebook makes a tiny Llama, its tokenizer and rows, which takes half a
# minute on two cores. `docs/fine-tune.md` tells the same in commands.

# %% tags=["parameters"]
folder: str = ""  # model: config.json, *.safetensors, tokenizer.json; empty: a tiny Llama
rows: str = ""  # rows to train on (.jsonl, .parquet, .arrow), or a text; empty with folder: made
held: str = ""  # rows or a text to evaluate on; empty: a twentieth of the others
method: str = "stronghold"  # any method that trains Hugging Face's models
device_memory: str = ""  # budget of the device, such as "24GiB"; empty: all there is
dtype: str = "fp32"  # of working weights and activations: fp32 or bf16
seq: int = 64  # tokens of a sample
batch: int = 8  # samples a step
steps: int = 60  # optimizer steps
lr: float = 3e-3  # learning rate; some 1e-5 for a trained model
prompt: str = "Return the absolute value of the argument. ->"  # what is gone on with in the end
results: str = "results"  # folder of the run records, as --results of the command line

# %%
import workbench
from workbench.model.hf_config import spec_from_config
from workbench.model.trial import make_trial
from workbench.runs.store import Store

place = Store(results).root
trial = None if folder else make_trial(place / "trial")
folder, rows, held = trial or (folder, rows, held)
setting = {
    "method": method, "model": spec_from_config(folder, seq=seq).to_dict(), "tokenizer": folder,
    "text": rows, "eval_text": held, "eval_every": max(1, steps // 6), "batch": batch, "lr": lr,
    "steps": steps, "save_every": steps, "dtype": dtype, "device_memory": device_memory or None,
}  # fmt: skip

# %% [markdown]
# ## Plan
# How long a step takes, what each tier will hold, and what binds. Times are estimates until such
# layers have been measured here, which the run does.

# %%
workbench.plan(**setting, results=results)

# %% [markdown]
# ## Train
# The run has a process of its own; a second call finds the record and trains nothing. With
# `log="tensorboard"` the curves go to TensorBoard, too.

# %%
record = workbench.run(**setting, results=results)

# %% [markdown]
# ## Held-out loss
# Mean over the labels that count, of rows that the run does not train on.

# %%
import pandas

pandas.DataFrame(record.evaluations)

# %% [markdown]
# ## Export
# A folder that `from_pretrained` and servers take: configuration, weights in the type that came in,
# and the tokenizer.

# %%
out = place / "exported" / record.key
exported = out if out.is_dir() else workbench.export(record, out, results=results)
print(exported)

# %% [markdown]
# ## Generate

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(out)
model = AutoModelForCausalLM.from_pretrained(out)
asked = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
answer = model.generate(**asked, max_new_tokens=20, do_sample=False)
tokenizer.decode(answer[0], skip_special_tokens=True)
