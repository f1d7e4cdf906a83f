"""`python -m tui DIR …`: look at running nodes; each DIR is a run directory or a demo's folder."""

from __future__ import annotations

import sys
from pathlib import Path

from tui.app import StarlingApp
from tui.source import source_for


def main() -> int:
    """Run until a person quits."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m tui DIR …\n")
        return 2
    StarlingApp([source_for(Path(argument)) for argument in sys.argv[1:]]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
