"""Installs packages: by uv, in a tenth of the time that pip takes, and by pip where uv fails.

uv reads none of pip's settings, so it is told here. Standard library only.
"""

import ast
import subprocess

UV, VERSION = "uv", "0.13.9"
ARGUMENTS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
"""pip's settings whose values are words, each of which is an argument of uv's."""
VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}
FROM_ENVIRONMENT = ":env:"


class Installer:
    """Installs packages into a virtual environment, by uv or by pip."""

    def __init__(self, python, run, say):
        """`python` is the environment's; `run(title, command, env)` runs a command and raises
        RuntimeError where it fails."""
        self._run, self._say = run, say
        self._pip = [python, "-m", "pip", "install", "--progress-bar", "off"]
        self._uv, self._env = [], {}
        try:
            run("installing uv", [*self._pip, f"{UV}=={VERSION}"], {})
        except RuntimeError:
            say("uv cannot be had here; pip installs, which takes some minutes more")
            return
        given, self._env = told(pip_settings(python))
        # All indexes are asked for the best version, as pip asks them.
        ask = ["--index-strategy", "unsafe-best-match", "--no-progress"]
        self._uv = [python, "-m", UV, "pip", "install", "--python", python, *ask, *given]

    def use_pip(self):
        """Leave uv, which does not see packages outside of the environment, and would fetch them
        again."""
        self._uv = []

    def install(self, title, arguments, env=None):
        """Install; raises RuntimeError where pip cannot either."""
        env = dict(env or {})
        if self._uv:
            try:
                self._run(title, [*self._uv, *arguments], self._env | env)
                return
            except RuntimeError:
                self._say("  uv cannot; pip tries")
        self._run(title, [*self._pip, *arguments], env)


def pip_settings(python):
    """pip's settings by name, those of the environment over those of files."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if not value:  # no setting, but a line that pip says
            continue
        if section == FROM_ENVIRONMENT or key not in found:
            found[key] = str(ast.literal_eval(value))
    return found


def told(settings):
    """Arguments and variables by which uv does as pip's settings say."""
    arguments = [
        word
        for name, option in ARGUMENTS.items()
        for value in settings.get(name, "").split()
        for word in (option, value)
    ]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        arguments.append("--no-index")
    return arguments, {VARIABLES[name]: settings[name] for name in VARIABLES if name in settings}
