#!/bin/sh
# What a container runs. `create`, `join` and `run` start the node of /data and show its log; all else is a `starling` command.
#
#   create [MANIFEST.toml] [OPTIONS]
#   join [INVITE] [OPTIONS]     INVITE may be -, standard input: what a command says, others can see
#   run
#   healthy    exit code 0 if the node answers: what `starling status` asks, at a fifth of the cost, for it is asked for ever
#
# A /data that holds a node already goes on with it, whatever was asked: a container may be started any number of times.
# INVITE_FILE, if set, is where `create` writes the invite and where `join` waits for it.
set -eu
umask 077

case ${1-} in
    create | join | run) ;;
    found) shift && set -- create "$@" ;; # its former name
    healthy) # with an end of its own: some engines leave a check running that took too long
        exec timeout -k 1 8 python -c '
import sys
from pathlib import Path
from starling.node.status import control
try:
    control.status(Path("/data"))
except control.ControlError as error:
    sys.exit(str(error))'
        ;;
    *) exec starling "$@" ;;
esac

# The node's log has all events: shown from where it ends now, instead of what the node would write for people on standard error.
export STARLING_LOG_SHOWN=1
log=/data/log.jsonl
touch "$log"
tail -c "+$(($(wc -c <"$log") + 1))" -F "$log" 2>/dev/null &

if [ -e /data/node.toml ]; then
    set -- run
elif [ -n "${INVITE_FILE-}" ] && [ "$1" = create ]; then
    exec >"$INVITE_FILE"
elif [ -n "${INVITE_FILE-}" ] && [ "$1" = join ]; then
    shift
    waited=0
    until [ -s "$INVITE_FILE" ]; do
        [ $((waited % 120)) -ne 20 ] ||
            echo "starling-node: no invite in $INVITE_FILE yet; is the creator there? start it with \`docker compose -f docker/compose.yaml up -d creator\`" >&2
        waited=$((waited + 1))
        sleep 0.5
    done
    set -- join --invite-file "$INVITE_FILE" "$@"
fi
exec starling "$@" --dir /data
