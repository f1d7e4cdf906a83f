#!/bin/sh
# Kills nodes of a running swarm without a word, and starts them again.
set -eu
usage='docker/scenarios/kill.sh [--for 30] [--within 300] [--nodes N] [-p PROJECT]

Kills N nodes at once with SIGKILL (default: a third of them, the creator the first), leaves them dead for so many seconds and
starts them again from their volumes. Exit code 0 if within so many seconds every node has all members again and trains on; 1 if not.'
# shellcheck source=docker/scenarios/common.sh
. "$(dirname "$0")/common.sh"
options "$@"

dead=

undo() {
    # shellcheck disable=SC2086
    [ -z "$dead" ] || docker start $dead >/dev/null || tell "start them again with \`docker start\`:" $dead
    dead=
}

begin 3
size=${nodes_n:-$((there / 3))}
[ "$size" -lt "$there" ] || fail "--nodes: must be less than $there, somebody has to stay, got $size; try \`--nodes $((there / 3))\`" 2
dead=$(echo "$everybody" | head -n "$size")
tell "killing for $lasts s:" "$dead"
# shellcheck disable=SC2086
docker kill $dead >/dev/null
sleep "$lasts"
echo
table
heal_and_tell
