#!/usr/bin/env python3
"""Measures what the order of sums alone makes of a reference model in Hugging Face transformers, in bfloat16.

measure_rounding.py MODEL [--runs 30] [--noise 1e-6]

Runs the prompts and greedy tokens of MODEL/expected.safetensors (float32), teacher-forced. To each linear layer's float32
sums is added normal noise, of --noise times their mean magnitude, before they are rounded to bfloat16: what another order
of summation may make of them. Prints the largest difference of the prompts' logits, and each greedy step at which another
token is the most likely one: in how many runs, and the gap there between the reference's two best logits, both relative to
the reference's largest. The limits of `quire verify` in bfloat16 can be held against it.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--noise", type=float, default=1e-6)
    args = parser.parse_args()

    expected = load_file(args.model / "expected.safetensors")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)

    def sum_otherwise(layer: torch.nn.Linear, inputs: tuple, _: torch.Tensor) -> torch.Tensor:
        sums = linear(inputs[0].float(), layer.weight.float(), None if layer.bias is None else layer.bias.float())
        noise = torch.randn(sums.shape, generator=generator) * args.noise * sums.abs().mean()
        return (sums + noise).to(inputs[0].dtype)

    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(sum_otherwise)

    error = 0.0
    others = Counter()
    for _ in range(args.runs):
        for prompt in range(sum(name.startswith("prompt.") for name in expected)):
            tokens, greedy = expected[f"prompt.{prompt}"].long(), expected[f"greedy.{prompt}"].long()
            logits = model(torch.cat([tokens, greedy[:-1]])[None], use_cache=False).logits[0].float()
            reference = expected[f"logits.{prompt}"]
            largest = reference.abs().max()
            error = max(error, ((logits[: len(tokens)] - reference).abs().max() / largest).item())
            best = logits[len(tokens) - 1 :].argmax(1)
            for step in (best != greedy).nonzero()[:, 0].tolist():
                others[(expected[f"gap.{prompt}"][step] / largest).item(), prompt, step] += 1
    print(f"logits differ by up to {error:.3f}")
    for (gap, prompt, step), count in sorted(others.items(), reverse=True):
        print(f"prompt {prompt}, step {step}: another token in {count} of {args.runs} runs, gap {gap:.4f}")


if __name__ == "__main__":
    main()
