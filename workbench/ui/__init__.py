"""The interactive side: controllers that know no widgets, and panels that show them.

A controller is polled; a panel shows it, inside `framed` and with `Folds` for what opens and
closes, so that all of it works by keyboard and by screen reader. Timers and buttons take turns in
the kernel's main loop (one_loop.py; JupyterLab would press buttons in another thread). Whatever
takes more than a few milliseconds is asked of a helper process (helper_process.py) or done in
slices. All text goes through `html.escape`.
"""
