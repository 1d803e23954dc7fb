#!/usr/bin/env python3
"""Writes the rows of logits that SamplingCasesTest compares with transformers' own logits processors.

make_sampling_cases.py [--out tests/parity/sampling_cases.jsonl]

Each line is one row: logits in 64ths, what is asked of it, the logits that biases, bad words and the repetition
penalty leave where there are any (null: ruled out), and the tokens that temperature, min_p, top_k and top_p leave, in
the order of docs/sampling.md. Many thresholds lie a little (NEAR) above or below what decides about a token; where
rounding could decide, and no test asks for just that, the row is drawn again.
"""

import argparse
import json
import math
import random
from pathlib import Path

import numpy
import torch
from transformers.generation import logits_process as hf

VOCAB = 40
DEFAULTS = {"prompt": [], "output": [0], "bias": [], "bad_words": [], "repetition": 1}
DEFAULTS |= {"temperature": 1, "min_p": 0, "top_k": 0, "top_p": 1}  # what a line does not say
NEAR = 2e-4  # how far from a token's share a threshold is set; rounding moves it by 1e-6


def single(value: float) -> float:
    return float(numpy.float32(value))


def adjusted(row: dict, logits: torch.Tensor) -> torch.Tensor:
    history = torch.tensor([row["prompt"] + row["output"]])
    processors = hf.LogitsProcessorList()
    if row["bias"]:
        processors.append(hf.SequenceBiasLogitsProcessor([[[token], value] for token, value in row["bias"]]))
    if row["bad_words"]:
        processors.append(hf.NoBadWordsLogitsProcessor(row["bad_words"]))
    if row["repetition"] != 1:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(row["repetition"]))
    return processors(history, logits)


def filters(row: dict) -> list:
    return [
        hf.TemperatureLogitsWarper(row["temperature"]) if row["temperature"] != 1 else None,
        hf.MinPLogitsWarper(row["min_p"]) if row["min_p"] > 0 else None,
        hf.TopKLogitsWarper(row["top_k"]) if row["top_k"] > 0 else None,
        hf.TopPLogitsWarper(row["top_p"]) if row["top_p"] < 1 else None,
    ]


def shares(logits: torch.Tensor) -> list[float]:
    """Probabilities of the tokens that are left, the largest first."""
    row = [x for x in logits[0].double().tolist() if x > -math.inf]
    top = max(row)
    weights = sorted((math.exp(x - top) for x in row), reverse=True)
    return [weight / sum(weights) for weight in weights]


def is_decided(row: dict, logits: torch.Tensor) -> bool:
    """Whether no threshold lies where rounding decides."""
    for processor in filters(row):
        if processor is None:
            continue
        probabilities = shares(logits)
        if isinstance(processor, hf.MinPLogitsWarper):
            ratios = [p / probabilities[0] for p in probabilities]
            if row["min_p"] < 1 and any(abs(ratio / row["min_p"] - 1) < NEAR / 10 for ratio in ratios):
                return False
        if isinstance(processor, hf.TopPLogitsWarper):
            sums = numpy.cumsum(probabilities)
            if any(abs(part - row["top_p"]) < NEAR / 50 for part in sums):
                return False
        logits = processor(None, logits)
    return True


def complete(row: dict, exact: bool = False) -> dict | None:
    logits = torch.tensor([[x / 64 for x in row["logits"]]], dtype=torch.float32)
    changed = adjusted(row, logits)
    if not exact and not is_decided(row, changed):
        return None
    kept = changed
    for processor in filters(row):
        kept = kept if processor is None else processor(None, kept)
    row = {name: value for name, value in row.items() if value != DEFAULTS.get(name)}
    if changed is not logits:
        row["adjusted"] = [x if x > -math.inf else None for x in changed[0].tolist()]
    row["kept"] = [i for i, x in enumerate(kept[0].tolist()) if x > -math.inf]
    return row


def plain_row(logits: list[int], **asked) -> dict:
    return {"logits": logits} | DEFAULTS | asked


def random_row(random_: random.Random, kind: int) -> dict:
    spread = random_.choice([60, 200, 500])
    row = plain_row([round(random_.gauss(0, spread)) for _ in range(VOCAB)])
    tokens = list(range(VOCAB))
    if kind % 2:
        row["prompt"], row["output"] = random_.choices(tokens, k=6), random_.choices(tokens, k=5)
        row["repetition"] = single(random_.choice([0.5, 0.8, 1.1, 1.5, 3]))
        row["bias"] = [[token, random_.randint(-300, 300) / 64] for token in random_.sample(tokens, 3)]
        last = row["output"][-1]
        pairs = [[random_.choice([last, (last + 1) % VOCAB]), token] for token in random_.sample(tokens, 3)]
        row["bad_words"] = pairs + [[token] for token in random_.sample(tokens, 3)]
    row["temperature"] = single(random_.choice([1, 0.5, 0.7, 1.3, 2]))
    changed = adjusted(row, torch.tensor([[x / 64 for x in row["logits"]]])) / row["temperature"]
    probabilities = shares(changed)
    place = random_.randrange(1, 15)
    side = random_.choice([-1, 1]) * NEAR
    if kind // 2 % 4 in (0, 3):
        row["top_p"] = min(single(sum(probabilities[:place]) + side), 1)
    if kind // 2 % 4 in (1, 3):
        row["min_p"] = min(single(probabilities[place] / probabilities[0] * (1 + side)), 1)
    if kind // 2 % 4 in (2, 3):
        row["top_k"] = random_.randrange(1, VOCAB + 3)
    return row


def exact_rows() -> list[dict]:
    """Ties, and thresholds that are met exactly: sums of powers of two."""
    ties = [64 * (i * 7 % 10 // 3) for i in range(VOCAB)]
    rows = [plain_row(ties, top_k=k) for k in (1, 4, 5, 12, 13, 16, 17, VOCAB, VOCAB + 1)]
    rows += [plain_row(ties, min_p=1), plain_row([0] * VOCAB, min_p=1), plain_row([0] * VOCAB, top_k=3)]
    for size in (2, 8, 32):
        rows += [plain_row([5] * size, top_p=k / size) for k in range(1, size)]
    rows += [plain_row([0] * 8 + [-6400] * 8, top_p=top_p) for top_p in (0.25, 0.5, 0.875)]
    rows += [plain_row([0] * 16, top_k=3, top_p=0.5), plain_row([300] + [0] * 15, min_p=0.5, top_k=9, top_p=0.1)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/parity/sampling_cases.jsonl"))
    out = parser.parse_args().out
    random_ = random.Random(30)
    rows = [complete(row, exact=True) for row in exact_rows()]
    for kind in range(96):
        while (row := complete(random_row(random_, kind))) is None:
            pass
        rows.append(row)
    out.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    main()
