#!/usr/bin/env python3
"""Writes what Hugging Face transformers' beam search finds, for tests/engine/beam_search_test.cpp.

make_beam_golden.py MODEL [--out MODEL/beams.json]

The prompts are those of MODEL/expected.safetensors. Computed in float32 and in float64 with eager attention; a case
whose texts depend on that is left out, since it is decided by rounding.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

# width, outputs, length_penalty, early_stopping, new tokens, tokens that end a text
CASES = [
    (2, 2, 1.0, False, 24, [1]),
    (4, 4, 1.0, True, 24, [1]),
    (5, 3, 0.0, "never", 20, [1]),
    (8, 8, 2.0, "never", 12, [1]),
    (3, 3, 1.0, False, 40, None),
    (4, 4, 1.0, True, 40, None),
    (4, 4, -1.0, False, 40, None),
    (4, 4, 2.0, "never", 40, None),
    (6, 6, 0.5, True, 30, None),
    (4, 4, 1.5, False, 40, None),
]


@torch.inference_mode()
def search(model, prompt: list[int], case: tuple, stop_ids: list[int]) -> tuple[list[list[int]], list[float]]:
    width, outputs, length_penalty, early_stopping, max_tokens, _ = case
    ids = torch.tensor([prompt])
    result = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=width, num_return_sequences=outputs,
        length_penalty=length_penalty, early_stopping=early_stopping, max_new_tokens=max_tokens,
        eos_token_id=stop_ids, pad_token_id=stop_ids[0], return_dict_in_generate=True, output_scores=True,
        output_logits=True)  # fmt: skip
    lengths = (result.beam_indices >= 0).sum(1).tolist()
    texts = [row[len(prompt) : len(prompt) + n].tolist() for row, n in zip(result.sequences, lengths)]
    return texts, result.sequences_scores.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    expected = load_file(args.model / "expected.safetensors")
    prompts = [expected[f"prompt.{i}"].tolist() for i in range(sum(name.startswith("prompt.") for name in expected))]
    models = [
        AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.float64)
    ]
    cases, left_out = [], 0
    for index, prompt in enumerate(prompts):
        # So that texts end: what the widest search would say.
        likely = [token for text in search(models[0], prompt, (8, 8, 1.0, False, 12, None), [1])[0] for token in text]
        frequent = sorted(set(likely), key=lambda token: (-likely.count(token), token))
        for number, case in enumerate(CASES):
            stop_ids = case[5] or sorted(frequent[number % 3 : number % 3 + 1 + number % 4])
            (texts, scores), (exact, _) = (search(model, prompt, case, stop_ids) for model in models)
            if texts != exact:
                left_out += 1
                continue
            cases.append({
                "prompt": index, "beam_width": case[0], "n": case[1], "length_penalty": case[2],
                "early_stopping": str(case[3]).lower(), "max_tokens": case[4], "stop_token_ids": stop_ids,
                "texts": texts, "scores": scores})  # fmt: skip
    lines = ",\n".join(json.dumps(case) for case in cases)
    (args.out or args.model / "beams.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    ended = sum(len(text) < case["max_tokens"] for case in cases for text in case["texts"])
    print(f"{len(cases)} cases, {left_out} left out; {ended} texts end early")


if __name__ == "__main__":
    main()
