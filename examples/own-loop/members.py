"""Four processes of loop.py, each with other digits: `python members.py [--json]` prints what each recognises in the end."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOP = str(Path(__file__).with_name("loop.py"))


def main() -> None:
    """Start them, wait, and print."""
    with tempfile.TemporaryDirectory() as place:
        invite = Path(place) / "0.invite"
        members = []
        for part in range(4):
            more = [str(invite)] if part else []
            words = [sys.executable, LOOP, f"{place}/{part}", str(part), *more]
            members.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            while not invite.exists() and members[0].poll() is None:
                time.sleep(0.1)
        accuracies = [float(member.communicate()[0]) for member in members]
    found = {"accuracy": {"mean": sum(accuracies) / 4, "min": min(accuracies)}}
    print(json.dumps(found) if "--json" in sys.argv else found)


if __name__ == "__main__":
    main()
