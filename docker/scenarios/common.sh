# shellcheck shell=sh disable=SC2034,SC2154  # each of them uses its own part of what is set here
# What the scenarios share: options, who is there, the table, when a swarm has healed. Sourced; needs sh and the docker program.
#
# A scenario sets `usage`, calls `options "$@"` and `begin`, disturbs the swarm, and ends in `heal_and_tell`. It defines `undo`,
# which puts right whatever is still disturbed and is called on every way out, Ctrl-C too.

project=${COMPOSE_PROJECT_NAME-}
lasts=30
within=300
nodes_n=
seed=$$
every=10

# shellcheck disable=SC2048,SC2086  # names come one a line
tell() { echo $* >&2; }
fail() {
    tell "${0##*/}: $1"
    exit "${2:-1}"
}

whole() { # OPTION VALUE: a number of at least 1
    case $2 in '' | *[!0-9]* | 0*) fail "$1: must be a whole number from 1, got '$2'; try \`$1 ${3:-30}\`" 2 ;; esac
}

options() {
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help)
                echo "$usage"
                exit 0
                ;;
            -p | --project | --for | --within | --nodes | --every | --seed) [ $# -gt 1 ] || fail "$1: needs a value; see \`${0##*/} --help\`" 2 ;;
            *) fail "no option $1; see \`${0##*/} --help\`" 2 ;;
        esac
        case $1 in
            -p | --project) project=$2 ;;
            --for) whole --for "$2" && lasts=$2 ;;
            --within) whole --within "$2" 300 && within=$2 ;;
            --nodes) whole --nodes "$2" 2 && nodes_n=$2 ;;
            --every) whole --every "$2" 10 && every=$2 ;;
            --seed) whole --seed "$2" 1 && seed=$2 ;;
        esac
        shift 2
    done
}

of() { # SERVICE...: names of its containers, running or not, in order
    for service; do
        docker ps -a --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$service" \
            --format '{{.Names}}' | sort -V
    done
}

count() { echo $#; }

# What one node says of itself, in its container: state, members, round, accuracy, timeouts, rejoined.
look='
import json, sys
s = json.load(sys.stdin)
value = s.get("value")
print(s["state"], s["members"], s["round"], "-" if value is None else "%.3f" % value, s["exchanges"]["timeout"], "yes" if s["rejoined"] else "no")'

ask() { # NODE
    docker exec -u 10001 "$1" sh -c 'starling status --dir /data --json 2>/dev/null | python -c "$0" 2>/dev/null' "$look" \
        >"$work/$1.new" 2>/dev/null </dev/null || echo "- 0 0 - - -" >"$work/$1.new"
    [ -s "$work/$1.new" ] || echo "- 0 0 - - -" >"$work/$1.new"
    mv "$work/$1.new" "$work/$1"
}

ask_all() {
    for node in $everybody; do ask "$node" & done
    wait
}

table() {
    ask_all
    printf '%-28s %-10s %7s %7s %8s %8s %8s\n' node state members round accuracy timeouts rejoined
    for node in $everybody; do
        read -r state members round value timeouts rejoined <"$work/$node"
        [ "$state" != - ] || { members=- && round=-; }
        printf '%-28s %-10s %7s %7s %8s %8s %8s\n' "$node" "$state" "$members" "$round" "$value" "$timeouts" "$rejoined"
    done
}

furthest() { # the largest round of any node
    for node in $everybody; do
        read -r _ _ round _ <"$work/$node"
        echo "$round"
    done | sort -n | tail -1
}

missing() { # ROUND: prints what keeps the swarm from being whole and beyond that round; nothing if it is
    for node in $everybody; do
        read -r state members round _ <"$work/$node"
        case $state in
            finished) ;;
            training) [ "$round" -gt "$1" ] || echo "$node is at round $round, $1 is to be passed" ;;
            -) echo "$node does not answer" ;;
            *) echo "$node is $state" ;;
        esac
        [ "$state" = - ] || [ "$members" -ge "$honest" ] || echo "$node knows $members of $honest members"
    done
}

now() { date +%s; }

wait_until_whole() { # ROUND: 0 once `missing` has nothing to say, 1 after --within seconds
    until_s=$(($(now) + within))
    while :; do
        ask_all
        why=$(missing "$1" | head -1)
        [ -n "$why" ] || return 0
        [ "$(now)" -lt $until_s ] || return 1
        sleep 2
    done
}

find_project() { # the only one that has a creator, where none is named
    [ -z "$project" ] || return 0
    project=$(docker ps --filter label=com.docker.compose.service=creator --format '{{.Label "com.docker.compose.project"}}' | sort -u)
    case $project in
        *[[:space:]]*) fail "several swarms run; name one with --project: $(echo "$project" | tr '\n' ' ')" 2 ;;
        '') project=starling ;;
    esac
}

begin() { # LEAST: so many nodes are needed
    docker version >/dev/null 2>&1 || fail "no Docker engine answers; look with \`docker version\`"
    find_project
    everybody=$(of creator volunteer wan liar)
    # shellcheck disable=SC2086  # names have no spaces
    there=$(count $everybody)
    up="docker compose -p $project -f docker/compose.yaml up -d --scale volunteer=5"
    [ "$there" -ge "$1" ] || fail "project $project has $there nodes, $1 are needed; start them with \`$up\`, or name another with --project"
    # A liar may be shut out by any of the others at any time: it is not counted on.
    # shellcheck disable=SC2046
    honest=$((there - $(count $(of liar))))
    work=$(mktemp -d)
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'code=$?; trap "" INT TERM; undo; rm -rf "$work"; exit $code' EXIT
    tell "waiting until all $there nodes train together"
    wait_until_whole 0 || fail "the swarm was not whole to begin with: $why; see \`docker logs NODE\`, or wait longer with --within"
    table
}

heal_and_tell() { # undoes, waits, ends
    ask_all
    past=$(furthest)
    undo
    since=$(now)
    tell "all is back; waiting until every node has all members and is past round $past"
    if wait_until_whole "$past"; then healed=yes; else healed=no; fi
    seconds=$(($(now) - since))
    echo
    table
    [ $healed = yes ] || fail "not healed within $within s: $why; see \`docker logs NODE\`"
    echo "healed after $seconds s"
}
