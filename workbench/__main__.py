"""``python -m workbench``: the same command, where no scripts are on the path."""

from workbench.cli import main

raise SystemExit(main())
