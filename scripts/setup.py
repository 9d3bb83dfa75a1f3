"""Create or update `.venv`, the environment that every `make` target runs in.

It needs Python 3.11 or newer and nothing else; a C++ compiler is wanted for DeepSpeed's operators
and for our host optimizer. What it does, in this order, saying so:

1. torch. One that is already there and suitable is kept, in `.venv` or in the Python that runs this
   script (2.11 or newer; on a machine with an NVIDIA GPU, a CUDA build). Otherwise the pinned
   version is installed first and alone, so that nothing else gets to choose it.
2. DeepSpeed, and beside each other what compiles its native operators, once, into `.venv` (see
   baselines/deepspeed_ops.py), and everything else that pyproject.toml lists, at the versions of
   constraints.txt: by uv, or by pip where uv cannot (installing.py).

What was done is remembered in `.venv/share/workbench/setup.json` as a hash of all that it depends
on, so that a second call returns at once and an interrupted one goes on. Standard library only.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from installing import Installer

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "share" / "workbench" / "setup.json"
LOG = VENV / "share" / "workbench" / "setup.log"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
BUILD_TOOLS = ("setuptools", "wheel", "ninja", "psutil", "py-cpuinfo", "numpy", "packaging")
HEARTBEAT_S = 20

TORCH_PROBE = """
import json, pathlib, torch
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda is not None,
    "sees_gpu": torch.cuda.is_available(),
    "folder": str(pathlib.Path(torch.__file__).resolve().parent.parent),
}))
"""


class SetupError(RuntimeError):
    """Something the user has to put right; its text is the whole message."""


def say(text):
    print("setup: " + text, flush=True)


def run(title, command, env=None):
    """Run `command` with its output in the log; say what it does, now and then how far it is."""
    say(title)
    started_s = said_s = time.monotonic()
    with LOG.open("a") as log:
        log.write("\n$ " + " ".join(shlex.quote(str(part)) for part in command) + "\n")
        log.flush()
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=str(ROOT),
            env=dict(os.environ, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while True:
            try:
                code = process.wait(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - said_s >= HEARTBEAT_S:
                    said_s = time.monotonic()
                    say(f"  {said_s - started_s:.0f} s: {last_lines(1)[:110]}")
    if code != 0:
        raise SetupError(f"failed: {title}\n\n{last_lines(15)}\n\nThe whole output is in {LOG}")


def last_lines(count):
    """The last non-empty lines of the log."""
    text = LOG.read_text(errors="replace")[-8192:]
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:]).strip()


def newer_python():
    """A Python on the PATH that is new enough, for when this one is not."""
    for minor in (12, 11, 13, 14):  # the tested ones first
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


def has_gpu():
    """Whether an NVIDIA GPU answers here."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    answer = subprocess.run([tool, "-L"], capture_output=True, text=True)
    return answer.returncode == 0 and "GPU" in answer.stdout


def torch_of(python):
    """Version, kind and folder of the torch that `python` imports, or None."""
    answer = subprocess.run([str(python), "-c", TORCH_PROBE], capture_output=True, text=True)
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def suitable(torch, gpu):
    """Whether an existing torch serves; a machine with a GPU wants a CUDA build."""
    if torch is None:
        return False
    release = tuple(int(part) for part in re.findall(r"\d+", torch["version"])[:2])
    return release >= OLDEST_TORCH and (torch["cuda"] or not gpu)


def create_venv():
    """Make `.venv` unless a working one is there."""
    if PYTHON.exists():
        works = subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True)
        if works.returncode == 0:
            return
    say(f"creating .venv with Python {sys.version.split()[0]}")
    answer = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise SetupError(
            f"{sys.executable} cannot create a virtual environment (Debian and Ubuntu: install "
            f"python3-venv):\n{answer.stdout}{answer.stderr}"
        )
    STAMP.parent.mkdir(parents=True, exist_ok=True)


def install_torch(gpu, pip_arguments, installer):
    """Keep, borrow or install torch; return its version without a local suffix such as +cpu."""
    present = torch_of(PYTHON)
    if not pip_arguments and suitable(present, gpu):
        say(f"keeping torch {present['version']} of {present['folder']}")
        if not Path(present["folder"]).is_relative_to(VENV):  # borrowed by an earlier call
            installer.use_pip()
        return present["version"].split("+")[0]
    outside = None if Path(sys.prefix) == VENV else torch_of(sys.executable)
    if not pip_arguments and suitable(outside, gpu):
        say(f"keeping torch {outside['version']} of {outside['folder']}")
        site = Path(sysconfig.get_path("purelib", vars={"base": str(VENV)}))
        (site / "workbench-outside.pth").write_text(outside["folder"] + "\n")
        installer.use_pip()
        return outside["version"].split("+")[0]
    pip = [PYTHON, "-m", "pip"]
    pinned = pins()["torch"]
    if not gpu and not pip_arguments:
        say("no NVIDIA GPU answers here, so a CPU build of torch is enough; if your index has only")
        say(f"  CUDA builds (gigabytes): make setup TORCH='torch=={pinned} --index-url URL'")
    if present is not None:
        run(f"removing torch {present['version']}", [*pip, "uninstall", "--yes", "torch"])
    title = f"installing torch {pinned}"
    if pip_arguments:
        run(title, [*pip, "install", "--progress-bar", "off", *shlex.split(pip_arguments)])
    else:
        installer.install(title, [f"torch=={pinned}", "-c", "constraints.txt"])
    installed = torch_of(PYTHON)
    if installed is None:
        raise SetupError(
            f"torch was installed but cannot be imported; the whole output is in {LOG}"
        )
    if gpu and not installed["sees_gpu"]:
        say(f"WARNING: torch {installed['version']} sees no GPU now: runs will use the CPU")
    return installed["version"].split("+")[0]


def pins():
    """Package -> exact version, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.strip().split("==") for line in lines if line.strip() and line[0] != "#")


def install_packages(gpu, torch_version, installer, *, ops):
    """Install the rest of pyproject.toml at the versions of constraints.txt, keeping torch; return
    the process that builds operators meanwhile, where `ops` asks for one."""
    constraints = VENV / "share" / "workbench" / "constraints.txt"
    versions = dict(pins(), torch=torch_version)
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    installer.install("installing the build tools", ["-c", constraints, *BUILD_TOOLS])
    # Without isolation DeepSpeed's build sees the torch installed above and fetches no other.
    held = ["-c", constraints, "--no-build-isolation"]
    installer.install("installing DeepSpeed", [*held, "deepspeed"], {"DS_BUILD_OPS": "0"})
    builder = start_ops() if ops else None
    try:
        extras = "test,dev,finetune" + (",megatron" if gpu else "")
        words = "installing JupyterLab and the other packages of pyproject.toml"
        installer.install(words, [*held, "--editable", f".[{extras}]"])
        settle_jupyterlab()
    except BaseException:
        if builder is not None:
            builder.send_signal(signal.SIGINT)  # it ends its compilers
            builder.wait()
        raise
    return builder


def settle_jupyterlab():
    """JupyterLab asks its users whether to fetch news; here nothing asks anybody outside."""
    folder = VENV / "share" / "jupyter" / "lab" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
    (folder / "overrides.json").write_text(json.dumps(quiet, indent=1) + "\n")


def start_ops():
    """Compile DeepSpeed's operators in a process, which reports on itself."""
    say("checking DeepSpeed's native operators; compiling them takes 1 to 3 minutes, once")
    return subprocess.Popen(
        [str(PYTHON), "-u", "-W", "ignore", "-m", "baselines.deepspeed_ops"],
        cwd=str(ROOT),
        stdin=subprocess.DEVNULL,
    )


def built(builder):
    """Wait for the operators; return whether none failed."""
    if builder.wait() != 0:
        say("WARNING: without them the ZeRO baselines cannot run; everything else can")
    return builder.returncode == 0


def digest(*parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def packages_digest(gpu):
    """Hash of all that the installed packages depend on."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return digest(
        project["project"],
        project["build-system"],
        (ROOT / "constraints.txt").read_text(),
        *((ROOT / "scripts" / name).read_text() for name in ("setup.py", "installing.py")),
        [sys.version, sys.base_prefix, str(ROOT), gpu],
    )


def ops_digest(packages):
    """Hash of all that decides which operators can be built: a compiler may arrive later."""
    sys.path.insert(0, str(ROOT))
    from baselines import deepspeed_ops

    places = [Path(base, "include/libaio.h") for base in ("/usr", "/usr/local", sys.base_prefix)]
    libaio = [path.exists() for path in places]
    built = deepspeed_ops.compiler(), deepspeed_ops.processor(), deepspeed_ops.RECIPE
    return digest(packages, libaio, *built)


def read_stamp():
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and PYTHON.exists() else {}


def write_stamp(**done):
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(done))
    temporary.replace(STAMP)


@contextlib.contextmanager
def only_one():
    """Let a second `make` wait for the first instead of installing over it."""
    import fcntl

    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another set-up of this checkout to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(options):
    gpu = options.gpu or has_gpu()
    packages = packages_digest(gpu)
    ops = ops_digest(packages)
    stamp = read_stamp()
    started_s = time.monotonic()
    builder = None
    if options.torch or stamp.get("packages") != packages:
        create_venv()
        LOG.write_text("")
        installer = Installer(PYTHON, run, say)
        torch_version = install_torch(gpu, options.torch, installer)
        builder = install_packages(gpu, torch_version, installer, ops=not options.no_ops)
        write_stamp(packages=packages)
        stamp = {"packages": packages}
    if stamp.get("ops") != ops and not options.no_ops and built(builder or start_ops()):
        write_stamp(packages=packages, ops=ops)
    seconds = time.monotonic() - started_s
    say(f".venv is ready after {seconds:.0f} s" if seconds > 1 else ".venv is up to date")


def main():
    parser = argparse.ArgumentParser(description="Create or update .venv.")
    parser.add_argument("--torch", default="", metavar="ARGS", help="pip's arguments for torch")
    parser.add_argument("--gpu", action="store_true", help="prepare for a GPU not here now")
    parser.add_argument("--no-ops", action="store_true", help="build no operators")
    options = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        python = newer_python()
        if python is None:
            print("setup: Python 3.11 or newer is needed, this is", sys.version.split()[0])
            return 2
        os.execv(python, [python] + sys.argv)
    try:
        with only_one():
            set_up(options)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: interrupted; the next call goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
