#!/usr/bin/env python3
"""The tables of docs/quantisation.md: what each format of a model's weights, or of its KV cache, costs and gains.

  quantisation_table.py QUIRE [--model DIR] [--text FILE] [--context N] [--max-tokens N] [--rows NAME,...] [FLAGS...]
  quantisation_table.py QUIRE --caches [--contexts N,...] [--model DIR] [--text FILE] [--max-tokens N] [FLAGS...]

FLAGS are quire's, such as --device cpu --cpu-threads 2. Without --text it is text of the kinds that the bundled model
was trained on, from a seed that training did not have. The reference of KL and top-1 is the model in float32.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TOY = Path(__file__).resolve().parent / "toy_model"
ROWS = {
    "fp32": ["--dtype", "float32"],
    "fp16": ["--dtype", "float16"],
    "bf16": ["--dtype", "bfloat16"],
    "fp8": ["--quantization", "fp8"],
    "fp8 weight-only": ["--quantization", "fp8", "--weight-only"],
    "int8": ["--quantization", "int8"],
    "int8 weight-only": ["--quantization", "int8", "--weight-only"],
    "int4": ["--quantization", "int4"],
    "nf4": ["--quantization", "nf4"],
}
DOCUMENTS = 400


def toy_text():
    sys.path.insert(0, str(TOY))
    from corpus import Corpus

    corpus, rng = Corpus(), random.Random("quantisation table")
    return "".join(corpus.document(rng) + "<|endoftext|>" for _ in range(DOCUMENTS))


def run_json(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def decode_rate(quire, model, flags, batch):
    lengths = ["--input-len", "128", "--output-len", "128", "--batch", str(batch)]
    return run_json([quire, "bench", "latency", *model, *lengths, *flags, "--json"])["decode_tokens_per_s"]


def row(quire, model, name, evaluation, flags):
    dtype = [] if "--dtype" in ROWS[name] else ["--dtype", "bfloat16"]
    flags = ROWS[name] + dtype + flags
    evaluation = evaluation + ["--against-dtype", "float32"]
    result = run_json([quire, "eval", "perplexity", *model, *evaluation, *flags, "--json"])
    against = result["against"]
    rates = [decode_rate(quire, model, flags, batch) for batch in (1, 64)]
    return (
        f"| {name} | {result['weights_bytes'] / 2**20:.1f} | {result['perplexity']:.4f} | {against['kl_mean']:.2g} | "
        f"{against['kl_p99']:.2g} | {100 * against['top1_agreement']:.2f} % | {rates[0]:.0f} | {rates[1]:.0f} |"
    )


def print_weights(args, model, evaluation, flags):
    evaluation = evaluation + ["--context", args.context]
    print("| weights | MiB | perplexity | KL mean | KL p99 | top-1 agreement | one stream | 64 streams |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.rows.split(","):
        print(row(args.quire, model, name, evaluation, flags), flush=True)


def print_caches(args, model, evaluation, flags):
    print("| KV cache | context | perplexity | in 16 bits | KL mean | KL p99 | top-1 agreement |")
    print("|---|---|---|---|---|---|---|")
    command = [args.quire, "eval", "perplexity", *model, *evaluation, "--dtype", "bfloat16", *flags, "--json"]
    for cache in ("fp8", "fp8_e5m2"):
        for context in args.contexts.split(","):
            extra = ["--against-dtype", "bfloat16", "--context", context, "--kv-cache-dtype", cache]
            result = run_json(command + extra)
            against = result["against"]
            print(
                f"| {cache} | {context} | {result['perplexity']:.4f} | {against['perplexity']:.4f} | "
                f"{against['kl_mean']:.2g} | {against['kl_p99']:.2g} | {100 * against['top1_agreement']:.2f} % |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("--model", help="default: the bundled one")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--context", default="256")
    parser.add_argument("--caches", action="store_true", help="of the KV cache, not of weights")
    parser.add_argument("--contexts", default="128,512,1024,2048")
    parser.add_argument("--max-tokens")
    parser.add_argument("--rows", default=",".join(ROWS), help="some of: " + ", ".join(ROWS))
    args, flags = parser.parse_known_args()
    model = [args.model] if args.model else []
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(args.text.read_text(encoding="utf-8") if args.text else toy_text())
        file.flush()
        evaluation = ["--text", file.name]
        evaluation += ["--max-tokens", args.max_tokens] if args.max_tokens else []
        (print_caches if args.caches else print_weights)(args, model, evaluation, flags)


if __name__ == "__main__":
    main()
