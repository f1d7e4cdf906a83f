"""`python -m starling.tui PATH …`: look at running nodes or recorded runs; a PATH is a run directory, a demo's folder or a record.jsonl."""

import sys
from pathlib import Path

from starling.tui.app import StarlingApp
from starling.tui.first_run import first_run
from starling.tui.source import open_sources


def main() -> int:
    """Run until a person quits."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m starling.tui PATH …\n")
        return 2
    try:
        sources, playback = open_sources([Path(argument) for argument in sys.argv[1:]])
    except ValueError as error:
        sys.stderr.write(f"starling: {error}\n")
        return 2
    StarlingApp(sources, playback, welcome=first_run).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
