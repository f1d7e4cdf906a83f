#!/bin/sh
# Three nodes in containers, two of them behind bad lines, until all have learned: prints what each says of itself, as JSON.
# UP, LOSS and DELAY_MS are those of docker/compose.yaml. Ends with the containers, whatever happens.
set -eu

cd "$(dirname "$0")/../.."
export COMPOSE_PROJECT_NAME=starling-gallery COMPOSE_FILE=docker/compose.yaml
compose() { if docker compose version >/dev/null 2>&1; then docker compose --profile wan "$@"; else docker-compose --profile wan "$@"; fi; }
trap 'code=$?; compose down -v >&2 2>&1 || true; exit $code' EXIT
trap 'exit 130' INT TERM

compose up -d --scale wan=2 creator wan >&2
until_s=$(($(date +%s) + ${WITHIN_S-600}))
while :; do
    sleep 5
    said=$(for node in $(compose ps -q creator wan); do docker exec -u 10001 "$node" starling status --dir /data --json 2>/dev/null || echo null; done)
    if echo "$said" | python3 -c '
import json, sys

text, nodes, decoder = sys.stdin.read().lstrip(), [], json.JSONDecoder()
while text:
    node, end = decoder.raw_decode(text)
    nodes.append(node)
    text = text[end:].lstrip()
if len(nodes) < 3 or any(node is None or node["round"] < 100 or node["value"] is None for node in nodes):
    sys.exit(1)
values = [node["value"] for node in nodes]
known = min(node["members"] for node in nodes)
committed = min(node["exchanges"]["committed"] for node in nodes)
print(json.dumps({"nodes": len(nodes), "members": known, "least": min(values), "committed": committed}))
'; then exit 0; fi
    [ "$(date +%s)" -lt $until_s ] || { echo "wan-containers: not all at round 100 within ${WITHIN_S-600} s; see \`docker logs NODE\`" >&2; exit 1; }
done
