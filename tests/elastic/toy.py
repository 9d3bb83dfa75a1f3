"""A worker without torch: it counts steps, and rank 0 keeps the list of them."""

import argparse
import json
import os
import time
from pathlib import Path

from workbench.elastic.worker import Worker

parser = argparse.ArgumentParser()
for name in ("rank", "local_rank", "chunk_size", "batch-size", "resume_step"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--stage_to_rank_map")
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--to", type=Path, required=True)
given = parser.parse_args()
while (given.to / "hang").exists():
    time.sleep(0.02)
worker = Worker.join()
assert worker is not None
assert worker.rank == given.rank == int(os.environ["RANK"])
kept = given.to / "checkpoint.json"
counted = json.loads(kept.read_text()) if kept.exists() else []
step = len(counted) if given.rank == 0 else given.resume_step or 0


def save() -> None:
    if given.rank == 0 and worker.may_commit(step):
        part = kept.with_suffix(".part")
        part.write_text(json.dumps(counted))
        part.replace(kept)
        worker.committed(step)


told = {"pid": os.getpid(), "map": given.stage_to_rank_map, "share": given.batch_size}
told |= {"world": os.environ["WORLD_SIZE"], "resume": given.resume_step, "from": step}
(given.to / f"{worker.round}-{given.rank}.json").write_text(json.dumps(told))
while step < given.steps and not (given.to / "enough").exists():
    time.sleep(0.05)
    counted.append(step)
    step += 1
    worker.progress(step, 0.05)
    if worker.save_wanted() and not (given.to / f"deaf-{given.rank}").exists():
        save()
        worker.leave()
        raise SystemExit
    if step % given.every == 0:
        save()
save()
print("done at", step)
