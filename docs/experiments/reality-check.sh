#!/bin/bash
# A reality check of four losses at full size: bash docs/experiments/reality-check.sh runs/reality
set -e
out=${1:?the folder for the runs}
if [[ -e $out ]]; then exec proxemic reality-check --resume "$out"; fi
exec proxemic reality-check glyphs-small/softmax glyphs-small/proxy-anchor glyphs-small/proxy-nca-plus-plus \
  glyphs-small/warped-softmax --training.loggers '[]' --evaluation.untrained false \
  --trials 20 --folds 4 --repeats 5 --embedding-size 32 --out "$out"
