#!/usr/bin/env python3
"""Checks model families by transformers: reference models with other sizes, flags and layers than theirs.

    tools/check_models.py build/release/bin/quire [--models tests/golden] [--number 100] [--seed 0] [NAME ...]

Takes config.json of a model at random (of those named), changes some of its values, draws weights for it, and computes
prompts and greedy tokens by transformers (tools/make_golden.py). `quire verify` in float32 must find the same, or refuse
what was changed by name. Prints what transformers or Quire refuses; exit code 1 where one is computed otherwise, whose
folder is kept; where a library is missing that is said, and nothing is checked.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # bars
try:
    import torch
    import transformers
    from safetensors.torch import save_file

    import make_golden
except ImportError as e:
    print(f"check_models.py: SKIPPED: {e}; pip install torch transformers")
    sys.exit(0)

DIFFERS = 1  # the exit code of verify
LARGEST_DIFFERENCE = 1e-4  # of a logit, over the largest; gated norms make 3e-5 of another order of sums
EPS, GELU = [1e-3, 1e-5], ["silu", "gelu_pytorch_tanh"]
CHOICES = {
    "activation_function": ["gelu_new", "gelu_pytorch_tanh"], "attn_logit_softcapping": [3.0, None],
    "conv_L_cache": [2, 3, 4], "embedding_multiplier": [2.5], "final_logit_softcapping": [5.0, None],
    "global_head_dim": [16, 48, 64], "head_dim": [8, 16, 24, 40, 64], "hidden_act": GELU, "hidden_activation": GELU,
    "hidden_size": [64, 96, 128], "hidden_size_per_layer_input": [8, 24], "intermediate_size": [40, 72, 136],
    "layer_norm_eps": EPS, "layer_norm_epsilon": EPS, "linear_conv_kernel_dim": [2, 3, 4],
    "linear_key_head_dim": [8, 16, 32], "linear_value_head_dim": [8, 24, 32], "logit_scale": [0.125, 1.5],
    "logits_scaling": [1.5], "max_position_embeddings": [512, 2048], "moe_intermediate_size": [8, 24, 40],
    "n_head": [1, 2, 8], "norm_eps": EPS, "norm_epsilon": EPS, "num_kv_shared_layers": [1, 2],
    "partial_rotary_factor": [0.25, 0.5, 1.0], "query_pre_attn_scalar": [16, 48], "residual_multiplier": [0.6],
    "rms_norm_eps": EPS, "rope_theta": [500.0, 1e6], "shared_expert_intermediate_size": [8, 40],
    "sliding_window": [3, 7, 33, None], "vocab_size": [333, 513],
}  # fmt: skip
FLAGS = {
    "attention_bias", "attention_k_eq_v", "conv_bias", "mlp_bias", "norm_topk_prob", "tie_embedding",
    "tie_word_embeddings", "use_bias", "use_double_wide_mlp", "use_expert_bias", "use_qkv_bias",
}  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts")


def change(config: dict, key: str) -> None:
    if key in FLAGS:
        config[key] = not config[key]
    elif key in CHOICES:
        config[key] = random.choice(CHOICES[key])
    elif key == "num_attention_heads":
        config[key] = random.choice([1, 2, 4, 6, 8])
        divisors = [n for n in (1, 2, 3, 4, 6, 8) if config[key] % n == 0]
        config["num_key_value_heads"] = random.choice(divisors)
    elif key == "linear_num_key_heads":
        config[key] = random.choice([1, 2, 3, 4])
        config["linear_num_value_heads"] = config[key] * random.choice([1, 2, 3])
    elif key == "layer_types":
        kinds = sorted(set(config[key]))
        config[key] = [random.choice(kinds) for _ in range(random.randint(1, 5))]
        config["num_hidden_layers"] = len(config[key])
    elif key in EXPERTS:
        config[key] = random.choice([4, 6, 12])
        config["num_experts_per_tok"] = random.choice([1, 2, 3, 4])


def changed_config(source: Path) -> tuple[dict, dict]:
    """Another configuration, and what of it is other."""
    whole = json.loads(source.read_text(encoding="utf-8"))
    before = json.loads(json.dumps(whole))
    part, part_before = whole.get("text_config", whole), before.get("text_config", before)
    known = CHOICES.keys() | FLAGS | set(EXPERTS) | {"num_attention_heads", "linear_num_key_heads", "layer_types"}
    keys = sorted(key for key in part if key in known and part[key] is not None)
    for key in random.sample(keys, min(random.randint(1, 5), len(keys))):
        change(part, key)
    return whole, {key: value for key, value in part.items() if part_before.get(key) != value}


def make_reference(folder: Path) -> None:
    make_golden.make_checkpoint(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tensors = {}
    for i, length in enumerate((3, 34, 130)):
        prompt = torch.randint(model.config.get_text_config().vocab_size, (length,)).tolist()
        logits, greedy, gap = make_golden.reference(model, prompt, 12)
        tensors |= {f"prompt.{i}": torch.tensor(prompt, dtype=torch.int32), f"logits.{i}": logits}
        tensors |= {f"greedy.{i}": greedy, f"gap.{i}": gap}
    save_file(tensors, folder / "expected.safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", type=Path, default=Path(__file__).parent.parent / "tests" / "golden")
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_intermixed_args()
    random.seed(args.seed)
    transformers.logging.set_verbosity_error()

    # longrope: transformers has the short factors for a short prompt, Quire the long ones wherever they may come.
    # OLMo 3: transformers 5 has its own rope_theta in layers with a window, whatever the file says.
    sources = [
        path
        for path in sorted(args.models.glob("*/config.json"))
        if (path.parent.name in args.names or not args.names)
        and not re.search('"longrope"|"olmo3"', path.read_text(encoding="utf-8"))
    ]
    if not sources:
        parser.error(f"no such model in {args.models}")
    counts = {"same": 0, "refused": 0, "not made": 0, "other": 0}
    for _ in range(args.number):
        source = random.choice(sources)
        config, changes = changed_config(source)
        what = f"{source.parent.name}, {json.dumps(changes)}"
        folder = Path(tempfile.mkdtemp())
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            make_reference(folder)
        except Exception as e:  # transformers has many ways to say that there is no such model
            counts["not made"] += 1
            print(f"not made: {what}: {repr(e)[:160]}")
            shutil.rmtree(folder)
            continue
        done = subprocess.run([args.quire, "verify", folder, "--dtype", "float32"], capture_output=True, text=True)
        errors = [float(error) for error in re.findall(r"differ by (\S+)", done.stdout)]
        if done.returncode == 2 and not errors:
            counts["refused"] += 1
            print(f"refused: {what}: {done.stderr.strip()}")
        elif done.returncode == 0 or (done.returncode == DIFFERS and max(errors, default=math.inf) < LARGEST_DIFFERENCE):
            counts["same"] += 1
        else:
            counts["other"] += 1
            print(f"OTHER: {what}, in {folder}: logits differ by {max(errors, default='?')}; {done.stderr.strip()}")
            continue
        shutil.rmtree(folder)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["other"] else 0


if __name__ == "__main__":
    sys.exit(main())
