#!/bin/sh
# All figures that need a GPU, in ten minutes on one: benchmarks/gpu.sh [FOLDER]
# It installs what is missing, checks the update on the device, and leaves rows of JSON in FOLDER.
# `TINY=1 benchmarks/gpu.sh` runs the same on a CPU, small.
set -eu
cd "$(dirname "$0")/.."
out=${1:-${OUT:-runs/gpu}}
mkdir -p "$out"
make -s setup
python=.venv/bin/python

# measure NAME SECONDS ARGUMENTS...: rows go to NAME.jsonl; time running out is no failure, all else is.
measure() {
    name=$1 seconds=$2 status=0
    shift 2
    timeout -s KILL "$seconds" $python "$@" > "$out/$name.jsonl" || status=$?
    cat "$out/$name.jsonl"
    if [ $status != 0 ] && [ $status != 137 ]; then
        exit $status
    fi
}

if [ -n "${TINY:-}" ]; then
    measure update 240 benchmarks/gpu_update.py --tiny --json
    measure tmaze 270 benchmarks/learn.py run --quick --json tmaze-20-transformer-0
    exit
fi
measure update 240 benchmarks/gpu_update.py --json --seconds 6
# A corridor of 1,000 goes on where a call before was cut off; its curve is in benchmarks/learn/.
measure tmaze 270 benchmarks/learn.py run --json tmaze-1000-transformer-0
cp benchmarks/learn/tmaze-1000-*.jsonl "$out"
