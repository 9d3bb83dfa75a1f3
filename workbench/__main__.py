"""``python -m workbench``: the same command, where no scripts are on the path."""

import sys

from workbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
