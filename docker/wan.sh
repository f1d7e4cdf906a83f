#!/bin/sh
# A node behind a bad line. As root with NET_ADMIN it shapes its own container's network, then goes on as user starling without either.
#
#   UP=20mbit      what it may send; tc, token bucket
#   LOSS=1         percent of the packets sent to it that get lost; iptables
#   DELAY_MS=40    later by so much what it sends; tc, netem, which not every kernel has
set -eu

fail() { echo "starling-wan: $*" >&2; exit 2; }

: "${UP:=20mbit}" "${LOSS:=1}" "${DELAY_MS:=0}"
echo "$LOSS" | grep -Eqx '[0-9]+(\.[0-9]+)?' || fail "LOSS: must be percent, 0 to 50, got $LOSS; try LOSS=1"
echo "$DELAY_MS" | grep -Eqx '[0-9]+' || fail "DELAY_MS: must be whole milliseconds, got $DELAY_MS; try DELAY_MS=40"
share=$(awk -v p="$LOSS" 'BEGIN { if (p <= 50) printf "%.6f", p / 100 }')
[ -n "$share" ] || fail "LOSS: must be percent, 0 to 50, got $LOSS; try LOSS=1"

link=$(ip -o route show default | awk '{ print $5; exit }')
[ -n "$link" ] || fail "this container has no network; see \`docker compose config\`"
# 64 kB at a time: less throttles below the rate on kernels with a slow clock.
tc qdisc replace dev "$link" root handle 1: tbf rate "$UP" burst 64kb latency 100ms ||
    fail "UP: tc does not take $UP; try UP=20mbit, and cap_add: [NET_ADMIN] in the compose file"
if [ "$DELAY_MS" -gt 0 ] && ! tc qdisc add dev "$link" parent 1:1 netem delay "${DELAY_MS}ms" limit 10000 2>/dev/null; then
    echo "starling-wan: this kernel has no netem (modprobe sch_netem): no delay, rate and loss only" >&2
fi
case $share in
    0.000000) ;;
    *)
        iptables -w -A INPUT -i "$link" -m statistic --mode random --probability "$share" -j DROP ||
            fail "LOSS: iptables does not take $LOSS; where the kernel lacks xt_statistic try LOSS=0"
        ;;
esac

exec setpriv --reuid starling --regid starling --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs starling-node "$@"
