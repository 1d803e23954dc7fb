#!/usr/bin/env bash
# Lines of C++ and CUDA, comments and blanks included: a row of a Markdown table for each folder. Run in the project's root.
set -euo pipefail
echo "| folder | files | lines |"
echo "|---|---|---|"
total=0
for folder in include src/{base,ops,kvcache,scheduler,checkpoint,tokenizer,grammar,parallel,backends,layers,models,runner,record,engine,beams,inspect,simulate,http,hub,load,dialects,server,cli,python} bench tests; do
  files=$(git ls-files "$folder" | grep -E '\.(h|cpp|cu|cuh)$')
  lines=$(xargs cat <<<"$files" | wc -l)
  total=$((total + lines))
  echo "| $folder | $(wc -l <<<"$files") | $lines |"
done
echo "| all | | $total |"
