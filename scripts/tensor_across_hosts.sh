#!/usr/bin/env bash
# Tensor parallel ranks inside hosts against tensor parallel ranks across hosts, on a limited link: the same GPT, stage 3,
# global batch and four ranks on two hosts made of namespaces (see run_hosts.sh). With T = 2 each host's ranks compute a
# batch together, and gradients and parameters cross; with T = 4 activations do, several times a block.
#
# usage: bash scripts/tensor_across_hosts.sh [--rate RATE] [--json FILE] [flag of mpizero.train ...]
#
#   --rate RATE   of each host's link, as tc has it (20mbit)
#   --json FILE   the rows that are printed
#
# It says of each run the seconds of a step (median of the steps behind the first) and, of the host from which most
# leaves in a step, the bytes: counted, planned, and as the kernel counted them at its link. Status 1 where counted bytes
# are not those planned.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
case ${1-} in -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
rate=20mbit json='' flags=()
while (( $# )); do
    case $1 in
        --rate|--json) (( $# > 1 )) || { echo "$0: error: $1 needs a value" >&2; exit 2; }
                       printf -v "${1#--}" %s "$2"; shift 2 ;;
        *) flags+=("$1"); shift ;;
    esac
done
folder=$(mktemp -d) child=''
trap '{ kill "$child" && wait "$child"; } 2>/dev/null || true; rm -rf "$folder"' EXIT  # the run first: it writes there
trap 'exit 130' INT
trap 'exit 143' TERM
for size in 2 4; do
    printf '%s: T = %d on two hosts\n' "$0" "$size" >&2
    bash "$here/run_hosts.sh" 2 4 --rate "$rate" --model gpt --stage 3 --overlap off --global-batch 8 --steps 6 \
        "${flags[@]}" --tensor-size "$size" --log "$folder/log$size" --json "$folder/$size.json" >"$folder/said" &
    child=$!
    wait "$child" || { child=''; cat "$folder/said"; exit 1; }
    child=''
done
"${PYTHON:-python}" - "$folder" "$rate" "$json" <<'END'
import json, statistics, sys
from pathlib import Path

folder, rate, out = Path(sys.argv[1]), *sys.argv[2:]
rows = []
for size in (2, 4):
    summary = json.loads((folder / f"{size}.json").read_text())
    steps = map(json.loads, (folder / f"log{size}" / "steps.jsonl").read_text().splitlines())
    host = max(summary["hosts"], key=lambda host: host["inter_host_bytes_per_step"])
    rows.append({"tensor_size": size, "where": "inside hosts" if size == 2 else "across hosts",
                 "seconds_per_step": statistics.median([step["seconds"] for step in steps][1:]),
                 "counted": host["inter_host_bytes_per_step"], "planned": host["planned_inter_host_bytes_per_step"],
                 "interface": round(host["interface_payload_bytes_per_step"])})
print(f"2 hosts of 2 ranks, links of {rate}: bytes that leave a host in a step")
print("T  where          s a step     counted     planned  at its link")
for row in rows:
    print(f"{row['tensor_size']}  {row['where']}  {row['seconds_per_step']:9.3f}  {row['counted']:10,}  {row['planned']:10,}"
          f"  {row['interface']:11,}")
inside, across = rows
print(f"across hosts: {across['seconds_per_step'] / inside['seconds_per_step']:.1f} times the seconds, "
      f"{across['counted'] / inside['counted']:.1f} times the bytes")
if out:
    Path(out).write_text(json.dumps(rows, indent=1) + "\n")
sys.exit(any(row["counted"] != row["planned"] or not row["counted"] for row in rows))
END
