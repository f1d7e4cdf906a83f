#!/usr/bin/env bash
# Runs a demo that is recorded, and makes of it the stills in docs/stills that README.md shows.
set -euo pipefail
cd "$(dirname "$0")/.."
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
.venv/bin/starling demo --no-tui --record --dir "$folder/demo" --seconds 110 --kill 3@0.25 --join-late 0.4
.venv/bin/python tools/stills.py --to docs/stills --at 0.9 "$folder"/demo/node-*/record.jsonl
