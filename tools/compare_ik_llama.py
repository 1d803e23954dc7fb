#!/usr/bin/env python3
"""Quire beside ik_llama.cpp on a CPU: a prompt of 512 tokens and one stream of 64, on the same GGUF files of random
weights in the shape of Qwen3-0.6B. Both run by turns; the table has medians, and each best in parentheses. Writing the
files needs the Python packages gguf and numpy.

Usage: compare_ik_llama.py QUIRE IK_BIN FOLDER [--rounds 5] [--threads 2] [--types BF16,Q8_0,...]
  IK_BIN: where llama-bench and llama-quantize of ik_llama.cpp are.
  FOLDER: for the files, 2.9 GB, kept for the next time.
"""

import argparse
import json
import pathlib
import statistics
import subprocess

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 28, 1024, 3072, 16, 8, 128, 151936
MATRICES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
NORMS = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN, "attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}

# For the head and for values ik_llama.cpp would take a type of its own beside IQ4_XS.
HEAD = ["--token-embedding-type", "q6_K"]
QUANTIZE_FLAGS = {"Q8_0": [], "Q4_0": HEAD, "Q4_K_S": HEAD, "IQ4_XS": [*HEAD, "--attn-v-type", "q5_K"]}


def add_vocabulary(writer):
    """All bytes as GPT-2 writes them, one merge, and tokens that are never used."""
    import gguf

    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(c) for c in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    tokens = [*letters, "ab", *(f"<unused{i}>" for i in range(VOCAB - 257))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.NORMAL if i < 257 else gguf.TokenType.UNUSED) for i in range(VOCAB)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCAB - 1)


def write_model(path):
    """Random weights in bfloat16."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer)
    random = numpy.random.default_rng(0)

    def add_matrix(name, shape):
        values = random.standard_normal(shape, dtype=numpy.float32) * 0.02
        bf16 = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name + ".weight", gguf.quants.quantize(values, bf16), raw_dtype=bf16)

    add_matrix("token_embd", (VOCAB, HIDDEN))
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
    for layer in range(LAYERS):
        for name, shape in MATRICES.items():
            add_matrix(f"blk.{layer}.{name}", shape)
        for name, size in NORMS.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(size, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_files(folder, types, quantize):
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"qwen3-0.6b-{name}.gguf" for name in ["BF16", *types]}
    for name, path in files.items():
        if path.exists():
            continue
        part = path.with_suffix(".part")
        if name == "BF16":
            write_model(part)
        else:
            command = [quantize, *QUANTIZE_FLAGS[name], files["BF16"], part, name]
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        part.rename(path)
    return {name: files[name] for name in types}


def run_json(command):
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def run_ik(bench, path, threads):
    flags = ["-p", "512", "-n", "64", "-fa", "1", "-r", "1", "-o", "json"]
    rows = run_json([bench, "-m", path, *flags, "-t", str(threads)])
    return tuple(next(row["avg_ts"] for row in rows if row[key] > 0) for key in ("n_prompt", "n_gen"))


def run_quire(quire, path, threads):
    flags = ["--input-len", "512", "--output-len", "64", "--repeat", "1", "--device", "cpu", "--json"]
    result = run_json([quire, "bench", "latency", path, *flags, "--cpu-threads", str(threads)])
    return result["prefill_tokens_per_s"], result["decode_tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("ik_bin", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="BF16,Q8_0,Q4_0,Q4_K_S,IQ4_XS")
    args = parser.parse_args()
    types = args.types.split(",")
    for name in types:
        if name != "BF16" and name not in QUANTIZE_FLAGS:
            parser.error(f"--types: {name} is not known; use BF16, {', '.join(QUANTIZE_FLAGS)}")
    files = make_files(args.folder, types, args.ik_bin / "llama-quantize")
    print("| file | prefill, Quire | ik_llama.cpp | one stream, Quire | ik_llama.cpp |\n|---|---|---|---|---|")
    for name, path in files.items():
        runs = [
            (run_quire(args.quire, path, args.threads), run_ik(args.ik_bin / "llama-bench", path, args.threads))
            for _ in range(args.rounds)
        ]
        cells = []
        for figure in (0, 1):
            for engine in (0, 1):
                values = [run[engine][figure] for run in runs]
                cells.append(f"{statistics.median(values):.1f} ({max(values):.1f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
