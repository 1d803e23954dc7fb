#!/usr/bin/env python3
"""Writes the pooled hidden states of Hugging Face transformers, for tests/engine/embedding_test.cpp.

make_embedding_golden.py MODEL [--out MODEL/embeddings.json]

The prompts are those of MODEL/expected.safetensors. Of each: last_hidden_state of its last token, and the mean over all
tokens, both scaled to length 1. Computed in float32 with eager attention, pooled in float64.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel


def rounded(vector: torch.Tensor) -> list[float]:
    return [float(f"{value:.8g}") for value in (vector / vector.norm()).tolist()]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    expected = load_file(args.model / "expected.safetensors")
    model = AutoModel.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for index in range(sum(name.startswith("prompt.") for name in expected)):
        ids = expected[f"prompt.{index}"].long().unsqueeze(0)
        hidden = model(ids, use_cache=False).last_hidden_state[0].double()
        cases.append({"prompt": index, "last": rounded(hidden[-1]), "mean": rounded(hidden.mean(0))})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (args.out or args.model / "embeddings.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(cases)} prompts, vectors of {len(cases[0]['last'])}")


if __name__ == "__main__":
    main()
