#!/usr/bin/env bash
# Runs a demo in a terminal of 100 x 30 and prints what it shows near the end, as text: the still in README.md. Needs tmux.
set -euo pipefail
cd "$(dirname "$0")/.."
name="starling-still-$$"
folder="$(mktemp -d)"
terminal() { tmux -u -L "$name" "$@"; }
export LC_ALL=C.UTF-8 TERM=xterm-256color
end() {
    terminal send-keys C-c 2>/dev/null || true
    while terminal list-sessions >/dev/null 2>&1; do sleep 0.1; done
    rm -rf "$folder"
}
trap end EXIT
terminal -f /dev/null new-session -d -x 100 -y 30 ".venv/bin/starling demo --dir '$folder/demo' --kill 3@0.2 --join-late 0.3"
until terminal capture-pane -p | grep -q 'round 3[3-9][0-9]/400'; do
    terminal list-sessions >/dev/null 2>&1 || { echo "the demo ended too soon to be looked at" >&2; exit 1; }
    sleep 0.1
done
terminal capture-pane -p
