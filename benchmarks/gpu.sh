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
if [ -n "${TINY:-}" ]; then
    $python benchmarks/gpu_update.py --tiny --json | tee "$out/update.jsonl"
    $python benchmarks/learn.py run --quick --json tmaze-20-transformer-0 | tee "$out/tmaze.jsonl"
    exit
fi
timeout 240 $python benchmarks/gpu_update.py --json --seconds 6 | tee "$out/update.jsonl"
# A corridor of 1,000 goes on where a call before was cut off; its curve is in benchmarks/learn/.
timeout 270 $python benchmarks/learn.py run --json tmaze-1000-transformer-0 | tee "$out/tmaze.jsonl" || true
cp benchmarks/learn/tmaze-1000-*.jsonl "$out"
