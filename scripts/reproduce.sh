#!/usr/bin/env bash
# Run the six scripts, and before them the small runs that two of them show. Write what comes out to DIR: report.md with every claim,
# figures (where matplotlib is installed), and of each script its output and its JSON. Status 0 if every claim agrees, 1 if one does not or a script did not run, 2 for a wrong call.
#
#   bash scripts/reproduce.sh runs/lecture
#   bash scripts/reproduce.sh runs/lecture --mpirun 'mpirun --bind-to none'
#
# Python is $PYTHON, or else python, or python3; mpirun is the one beside it, if it brings one.
set -euo pipefail

wrong() { printf 'reproduce.sh: error: %s\nusage: bash scripts/reproduce.sh DIR [--mpirun COMMAND]\n' "$*" >&2; exit 2; }

directory='' mpirun=''
while (( $# )); do
    case $1 in
        -h|--help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --mpirun) (( $# > 1 )) || wrong '--mpirun needs a command'; mpirun=$2; shift ;;
        -*) wrong "unknown option $1" ;;
        *) [[ -z $directory ]] || wrong "one DIR, not also $1"; directory=$1 ;;
    esac
    shift
done
[[ -n $directory ]] || wrong 'DIR is missing: name a folder for the report'

python=${PYTHON:-$(command -v python || command -v python3 || true)}
[[ -n $python ]] || wrong 'no Python: activate the virtual environment, or set PYTHON'
if [[ -z $mpirun ]]; then
    mpirun=$("$python" -c 'import sys; print(sys.prefix)')/bin/mpirun
    [[ -x $mpirun ]] || mpirun=$(command -v mpirun || true)
    [[ -n $mpirun ]] || wrong "no mpirun: pip install 'mpizero[mpich]', or name one with --mpirun"
    mpirun=("$mpirun")
else
    read -ra mpirun <<<"$mpirun"
fi
mkdir -p "$directory" || wrong "$directory cannot be made"
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$scripts/..${PYTHONPATH:+:$PYTHONPATH}"

# Open MPI wants to be told twice that root is meant, and that there may be more ranks than cores, which then must not spin.
if (( EUID == 0 )); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
if (( $(getconf _NPROCESSORS_ONLN) < 4 )); then
    export PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe OMPI_MCA_mpi_yield_when_idle=1         # version 5
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none                     # version 4
fi

figures=()
if "$python" -c 'import matplotlib' 2>/dev/null; then
    figures=(--figures "$directory/figures")
fi

status=0
run() {  # NAME COMMAND...: the command with the script's name at its end
    local name=$1 more=(); shift
    case $name in 01_memory|04_offload) more=(${runs[@]+"${runs[@]}"}) ;; esac
    rm -f "$directory/$name.json"
    "$@" "$scripts/$name.py" --json "$directory/$name.json" ${figures[@]+"${figures[@]}"} ${more[@]+"${more[@]}"} </dev/null 2>&1 | tee "$directory/$name.txt" || status=1
}
runs=()  # what ranks counted, for those that start none
rm -f "$directory/small_runs.json"
"${mpirun[@]}" -n 4 "$python" "$scripts/small_runs.py" "$directory/small_runs.json" </dev/null || status=1
if [[ -f $directory/small_runs.json ]]; then
    runs=(--runs "$directory/small_runs.json")
fi
run 01_memory "$python"
run 02_zero_stages "${mpirun[@]}" -n 4 "$python"
run 03_fsdp "${mpirun[@]}" -n 4 "$python"
run 04_offload "$python"
run 06_published "$python"
run 07_master_weights "${mpirun[@]}" -n 4 "$python"

"$python" "$scripts/write_report.py" "$directory" || status=1
printf '\nreport: %s\n' "$directory/report.md"
exit "$status"
