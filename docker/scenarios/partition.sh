#!/bin/sh
# Cuts a running swarm in two, and heals it.
set -eu
usage='docker/scenarios/partition.sh [--for 30] [--within 300] [--nodes N] [-p PROJECT]

Cuts N nodes (default: half of them, never the creator) off from the others for so many seconds: packets between the two sides are
dropped in the containers'"'"' own networks, by a helper container of the image starling-wan. Each side should go on by itself.
Then the cut is undone. Exit code 0 if within so many seconds every node has all members again and trains on; 1 if not.'
# shellcheck source=docker/scenarios/common.sh
. "$(dirname "$0")/common.sh"
options "$@"

image=starling-wan
cut=

inside() { # NODE COMMAND: as root in the network of a node, with the right to change that and no other
    docker run --rm --network "container:$1" --cap-drop ALL --cap-add NET_ADMIN --user 0 --entrypoint sh "$image" -c "$2"
}

address() { docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}' "$1"; }

drop() { # NODE ADDRESS...: nothing of these gets through to it
    rules="iptables -w -N CUT"
    node=$1
    shift
    for from; do rules="$rules && iptables -w -A CUT -s $from -j DROP"; done
    inside "$node" "$rules && iptables -w -I INPUT -j CUT"
}

undo() {
    for node in $cut; do
        inside "$node" 'iptables -w -D INPUT -j CUT; iptables -w -F CUT && iptables -w -X CUT' >/dev/null 2>&1 ||
            tell "$node: there was no cut to undo; if it hears nobody, \`docker restart $node\`" &
    done
    wait
    cut=
}

docker image inspect "$image" >/dev/null 2>&1 ||
    fail "no image $image; build it with \`docker compose -f docker/compose.yaml --profile wan build wan\`"
begin 3
# shellcheck disable=SC2086
others=$(($(count $everybody) - 1))
size=${nodes_n:-$((there / 2))}
[ "$size" -le "$others" ] || fail "--nodes: must be at most $others, the creator stays, got $size; try \`--nodes $((there / 2))\`" 2
far=$(echo "$everybody" | tail -n "$size")
near=$(echo "$everybody" | head -n $((there - size)))
near_at=$(for node in $near; do address "$node"; done)
far_at=$(for node in $far; do address "$node"; done)

tell "cutting off for $lasts s:" "$far"
cut=$everybody
# shellcheck disable=SC2086
{
    for node in $near; do drop "$node" $far_at & done
    for node in $far; do drop "$node" $near_at & done
    wait
}
sleep "$lasts"
echo
table
heal_and_tell
