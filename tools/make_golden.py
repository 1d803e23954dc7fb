#!/usr/bin/env python3
"""Writes the reference results that `quire verify` compares with, from Hugging Face transformers.

make_golden.py MODEL [--prompts FILE] [--out MODEL/expected.safetensors] [--lengths 12,40,120] [--greedy 24]

MODEL is a checkpoint's folder. Where it holds nothing but config.json, weights are drawn at random, from a spread of
initializer_range, and saved there; norms and biases are drawn, too, since their usual values hide mistakes.
FILE holds one JSON value a line: a text, a list of token ids, or a list of chat messages (put into the model's chat
template, with the mark that opens the answer). With --lengths, prompt i is cut to its first N tokens. Without FILE prompts
are random tokens of these lengths.

The output holds for each prompt i:
  prompt.i  I32 [n]
  logits.i  F32 [n, vocab]  one pass over the prompt
  greedy.i  I32 [steps]     the most likely continuation; EOS does not stop it
  gap.i     F32 [steps]     the largest logit minus the second at each step of it
Computed in float32 on the CPU, with eager attention and no cache, on the exact values of the checkpoint.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def token_ids(value: str | list, tokenizer) -> list[int]:
    if isinstance(value, str):
        return tokenizer(value)["input_ids"]
    if value and isinstance(value[0], dict):
        text = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=True)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    return value


@torch.inference_mode()
def reference(model, prompt: list[int], steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.tensor([prompt])
    logits = model(ids, use_cache=False).logits[0]
    greedy, gaps, last = [], [], logits[-1]
    for _ in range(steps):
        top = last.topk(2)
        greedy.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        ids = torch.cat((ids, torch.tensor([[greedy[-1]]])), 1)
        last = model(ids, use_cache=False).logits[0, -1]
    return logits.contiguous(), torch.tensor(greedy, dtype=torch.int32), torch.tensor(gaps)


def make_checkpoint(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * config.get_text_config().initializer_range)
    text = (folder / "config.json").read_bytes()
    model.save_pretrained(folder)
    (folder / "config.json").write_bytes(text)  # as it was written, not as this version of the library spells it
    (folder / "generation_config.json").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lengths", help="comma-separated")
    parser.add_argument("--greedy", type=int, default=24, help="steps of the greedy continuation")
    args = parser.parse_args()

    if not list(args.model.glob("*.safetensors")):
        make_checkpoint(args.model)
    if args.prompts:
        values = [json.loads(line) for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    else:
        vocab = AutoConfig.from_pretrained(args.model).get_text_config().vocab_size
        lengths = [int(n) for n in (args.lengths or "1,7,40,120").split(",")]
        values = [torch.randint(vocab, (n,)).tolist() for n in lengths]
    has_text = any(isinstance(value, str) or isinstance(value[0], dict) for value in values)
    tokenizer = AutoTokenizer.from_pretrained(args.model) if has_text else None
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [token_ids(value, tokenizer) for value in values]
    if args.lengths:
        lengths = [int(n) for n in args.lengths.split(",")]
        assert len(lengths) == len(prompts), "--lengths needs one number a prompt"
        for prompt, length in zip(prompts, lengths):
            assert len(prompt) >= length, f"a prompt of {len(prompt)} tokens cannot be cut to {length}"
            del prompt[length:]

    tensors = {}
    for i, prompt in enumerate(prompts):
        logits, greedy, gap = reference(model, prompt, args.greedy)
        tensors |= {
            f"prompt.{i}": torch.tensor(prompt, dtype=torch.int32),
            f"logits.{i}": logits,
            f"greedy.{i}": greedy,
            f"gap.{i}": gap,
        }
        print(f"prompt {i}: {len(prompt)} tokens, smallest gap {float(gap.min()):.4f}")
    save_file(tensors, args.out or args.model / "expected.safetensors")


if __name__ == "__main__":
    main()
