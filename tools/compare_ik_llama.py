#!/usr/bin/env python3
"""Quire beside ik_llama.cpp on a CPU: a prompt of 512 tokens and one stream of 64, on the same GGUF files of random
weights in the shape of Qwen3-0.6B or of the hybrid Qwen3.5-0.8B. Both run by turns; the table has medians, and each
best in parentheses. Writing the files needs the Python packages gguf and numpy.

Usage: compare_ik_llama.py QUIRE IK_BIN FOLDER [--shape qwen3-0.6b] [--rounds 5] [--threads 2] [--types BF16,Q8_0,...]
  IK_BIN: where llama-bench and llama-quantize of ik_llama.cpp are.
  FOLDER: for the files, 2.9 GB, kept for the next time.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess


@dataclasses.dataclass
class Shape:
    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_base: float
    full_attention_interval: int = 1
    # Of linear attention.
    linear_heads: int = 0
    linear_dim: int = 128
    conv_width: int = 4

    def is_linear(self, layer):
        return (layer + 1) % self.full_attention_interval != 0

    def matrices(self, layer):
        """Rows and columns by name."""
        hidden, kv, linear = self.hidden, self.kv_heads * self.head_dim, self.linear_heads * self.linear_dim
        found = {"ffn_gate": (self.inner, hidden), "ffn_up": (self.inner, hidden), "ffn_down": (hidden, self.inner)}
        if self.is_linear(layer):
            small = self.linear_heads, hidden
            found |= {"attn_qkv": (3 * linear, hidden), "attn_gate": (linear, hidden), "ssm_out": (hidden, linear)}
            return found | {"ssm_alpha": small, "ssm_beta": small}
        attention = self.heads * self.head_dim
        queries = 2 * attention if self.linear_heads else attention  # and gates of outputs
        found |= {"attn_q": (queries, hidden), "attn_output": (hidden, attention)}
        return found | {"attn_k": (kv, hidden), "attn_v": (kv, hidden)}

    def vectors(self, layer):
        """Size and value of what is float32, by name."""
        second = "post_attention_norm" if self.linear_heads else "ffn_norm"
        found = {"attn_norm.weight": (self.hidden, 1), f"{second}.weight": (self.hidden, 1)}
        if not self.is_linear(layer):
            return found | {f"attn_{name}_norm.weight": (self.head_dim, 1) for name in "qk"}
        conv = 3 * self.linear_heads * self.linear_dim, self.conv_width
        found |= {"ssm_conv1d.weight": (conv, 0.25), "ssm_norm.weight": (self.linear_dim, 1)}
        return found | {"ssm_a": (self.linear_heads, -1), "ssm_dt.bias": (self.linear_heads, 0)}


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 1e6),
    "qwen3.5-0.8b": Shape("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, 1e7, full_attention_interval=4, linear_heads=16),
}

# For the head and for values ik_llama.cpp would take a type of its own beside IQ4_XS.
HEAD = ["--token-embedding-type", "q6_K"]
QUANTIZE_FLAGS = {"Q8_0": [], "Q4_0": HEAD, "Q4_K_S": HEAD, "IQ4_XS": [*HEAD, "--attn-v-type", "q5_K"]}


def add_vocabulary(writer, size):
    """All bytes as GPT-2 writes them, one merge, and tokens that are never used."""
    import gguf

    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(c) for c in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    tokens = [*letters, "ab", *(f"<unused{i}>" for i in range(size - 257))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([int(gguf.TokenType.NORMAL if i < 257 else gguf.TokenType.UNUSED) for i in range(size)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(size - 1)


def write_model(path, shape):
    """Random weights in bfloat16."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.linear_heads:
        writer.add_rope_dimension_count(shape.head_dim // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_uint32(f"{shape.architecture}.full_attention_interval", shape.full_attention_interval)
        writer.add_ssm_conv_kernel(shape.conv_width)
        writer.add_ssm_state_size(shape.linear_dim)
        writer.add_ssm_group_count(shape.linear_heads)
        writer.add_ssm_time_step_rank(shape.linear_heads)
        writer.add_ssm_inner_size(shape.linear_heads * shape.linear_dim)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer, shape.vocab)
    random = numpy.random.default_rng(0)

    def add_matrix(name, size):
        values = random.standard_normal(size, dtype=numpy.float32) * 0.02
        bf16 = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name + ".weight", gguf.quants.quantize(values, bf16), raw_dtype=bf16)

    add_matrix("token_embd", (shape.vocab, shape.hidden))
    writer.add_tensor("output_norm.weight", numpy.ones(shape.hidden, numpy.float32))
    for layer in range(shape.layers):
        for name, matrix in shape.matrices(layer).items():
            add_matrix(f"blk.{layer}.{name}", matrix)
        for name, (size, value) in shape.vectors(layer).items():
            writer.add_tensor(f"blk.{layer}.{name}", numpy.full(size, value, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_files(folder, shape, types, quantize):
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{shape}-{name}.gguf" for name in ["BF16", *types]}
    for name, path in files.items():
        if path.exists():
            continue
        part = path.with_suffix(".part")
        if name == "BF16":
            write_model(part, SHAPES[shape])
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
    """As llama-bench does it: the stream begins behind next to nothing."""
    flags = ["--repeat", "1", "--device", "cpu", "--cpu-threads", str(threads), "--json"]
    command = [quire, "bench", "latency", str(path), *flags]
    prompt = run_json([*command, "--input-len", "512", "--output-len", "1"])
    stream = run_json([*command, "--input-len", "1", "--output-len", "64"])
    return prompt["prefill_tokens_per_s"], stream["decode_tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("ik_bin", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", default="BF16,Q8_0,Q4_0,Q4_K_S,IQ4_XS")
    args = parser.parse_args()
    types = args.types.split(",")
    for name in types:
        if name != "BF16" and name not in QUANTIZE_FLAGS:
            parser.error(f"--types: {name} is not known; use BF16, {', '.join(QUANTIZE_FLAGS)}")
    files = make_files(args.folder, args.shape, types, args.ik_bin / "llama-quantize")
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
