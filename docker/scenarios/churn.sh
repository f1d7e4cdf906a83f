#!/bin/sh
# Nodes of a running swarm come and go for a while.
set -eu
usage='docker/scenarios/churn.sh [--for 90] [--every 10] [--seed 1] [--within 300] [-p PROJECT]

For so many seconds one node after the other, drawn by the seed, goes away: in turn stopped in order and killed without a word. It comes
back when the next one goes. Exit code 0 if at the end every node has all members again and trains on; 1 if not.'
. "$(dirname "$0")/common.sh"
lasts=90
options "$@"

gone=

undo() {
    [ -z "$gone" ] || docker start "$gone" >/dev/null || tell "start it again with \`docker start $gone\`"
    gone=
}

begin 3
ends=$(($(now) + lasts))
turn=0
while [ "$(now)" -lt $ends ]; do
    turn=$((turn + 1))
    # A draw that anybody can repeat; `+ turn` keeps awk's generator from beginning alike.
    next=$(echo "$everybody" | awk -v seed="$seed" -v turn="$turn" 'BEGIN { srand(seed * 1000 + turn); rand() } { a[NR] = $0 } END { print a[int(rand() * NR) + 1] }')
    undo
    gone=$next
    if [ $((turn % 2)) = 1 ]; then
        tell "$gone stops"
        docker stop -t 10 "$gone" >/dev/null
    else
        tell "$gone is killed"
        docker kill "$gone" >/dev/null 2>&1 || true
    fi
    sleep "$every"
done
echo
table
heal_and_tell
