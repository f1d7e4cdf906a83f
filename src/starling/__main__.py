"""`python -m starling`: the command `starling`."""

import sys

from starling.node.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
