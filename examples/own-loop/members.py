"""Four processes of a script, each with other data: `python members.py [SCRIPT] [--json]` prints what they say in the end.

A script, loop.py if none is named, is called with FOLDER PART [INVITE_FILE]. The first one creates the swarm and writes FOLDER.invite. The
last line that each prints is JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Start them, wait, and print."""
    named = [word for word in sys.argv[1:] if word != "--json"]
    script = named[0] if named else str(Path(__file__).with_name("loop.py"))
    with tempfile.TemporaryDirectory() as place:
        invite = Path(place) / "0.invite"
        members = []
        for part in range(4):
            more = [str(invite)] if part else []
            words = [sys.executable, script, f"{place}/{part}", str(part), *more]
            members.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            while not invite.exists() and members[0].poll() is None:
                time.sleep(0.1)
        said = [json.loads(member.communicate()[0].splitlines()[-1]) for member in members]
    found = {}
    for name in said[0]:
        values = [each[name] for each in said]
        found[name] = {"mean": sum(values) / 4, "min": min(values), "max": max(values)}
    print(json.dumps(found) if "--json" in sys.argv else found)


if __name__ == "__main__":
    main()
