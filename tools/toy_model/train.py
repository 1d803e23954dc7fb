#!/usr/bin/env python3
"""Trains the toy model and writes its checkpoint. Minutes on one GPU.

train.py [--out models/toy] [--samples 800000] [--epochs 2] [--hidden 256] [--layers 6] [--device cuda]; needs PyTorch,
safetensors and tokenizers, and the tokenizer that make_tokenizer.py has written to the same folder.
"""

import argparse
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from corpus import Corpus
from model import CONFIG, Toy, resize

SHARD = 5000  # samples per seed, so that the text does not depend on the number of processes
BUCKETS = tuple(range(64, 513, 64)) + (768, 1024, 1536, 2048)
PEAK_RATE, WARM_UP, WEIGHT_DECAY = 2e-3, 200, 0.1


def segments(sample: list | str) -> list[tuple[str, bool]]:
    """A sample as the chat template writes it, in pieces of text and whether the model learns to write them."""
    if isinstance(sample, str):
        return [(sample + "<|endoftext|>", True)]
    pieces, open_text = [], ""
    for message in sample:
        open_text += f"<|im_start|>{message['role']}\n"
        if message["role"] != "assistant":
            open_text += f"{message['content']}<|im_end|>\n"
            continue
        content = message["content"]
        if "thought" in message:
            open_text += "<think>\n"
            content = f"{message['thought']}\n</think>\n\n{content}"
        pieces += [(open_text, False), (f"{content}<|im_end|>", True)]
        open_text = "\n"
    return pieces


def encoded_shard(task: tuple[int, str]) -> list[tuple[np.ndarray, np.ndarray]]:
    seed, tokenizer_path = task
    tokenizer = Tokenizer.from_file(tokenizer_path)
    result = []
    for number, sample in enumerate(Corpus().generate(SHARD, seed)):
        pieces = segments(sample)
        encoded = [item.ids for item in tokenizer.encode_batch([text for text, _ in pieces])]
        ids = np.concatenate([np.array(part, np.int16) for part in encoded])
        if number < 50:
            assert ids.tolist() == tokenizer.encode("".join(text for text, _ in pieces)).ids
        learn = np.concatenate([np.full(len(part), flag) for part, (_, flag) in zip(encoded, pieces)])
        result.append((ids[: BUCKETS[-1]], learn[: BUCKETS[-1]]))
    return result


def batches(data: list, tokens_per_step: int, rng: np.random.Generator) -> list[tuple[int, np.ndarray]]:
    """Groups samples of similar length: (padded length, indices)."""
    lengths = np.array([len(ids) for ids, _ in data])
    bucket = np.searchsorted(BUCKETS, lengths)
    result = []
    for number, size in enumerate(BUCKETS):
        members = rng.permutation(np.flatnonzero(bucket == number))
        rows = max(1, tokens_per_step // size)
        result += [(size, members[i : i + rows]) for i in range(0, len(members), rows)]
    return [result[i] for i in rng.permutation(len(result))]


def tensors(data: list, size: int, members: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids = np.zeros((len(members), size), np.int64)
    learn = np.zeros((len(members), size), bool)
    for row, member in enumerate(members):
        ids[row, : len(data[member][0])], learn[row, : len(data[member][1])] = data[member]
    return torch.from_numpy(ids).to(device, non_blocking=True), torch.from_numpy(learn).to(device, non_blocking=True)


def learning_rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    return PEAK_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent.parent / "models" / "toy")
    parser.add_argument("--samples", type=int, default=800000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tokens-per-step", type=int, default=32768)
    parser.add_argument("--hidden", type=int, default=CONFIG["hidden_size"], help="a multiple of 128")
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    resize(args.hidden, args.layers)

    start = time.time()
    tasks = [(args.seed * 100000 + i, str(args.out / "tokenizer.json")) for i in range(max(1, args.samples // SHARD))]
    with multiprocessing.Pool() as pool:
        data = [sample for shard in pool.map(encoded_shard, tasks) for sample in shard]
    total = sum(len(ids) for ids, _ in data)
    print(f"{len(data)} samples, {total} tokens, {time.time() - start:.0f} s", flush=True)

    torch.manual_seed(args.seed)
    model = Toy().to(args.device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=args.device == "cuda",
    )
    rng = np.random.default_rng(args.seed)
    plan = [batch for _ in range(args.epochs) for batch in batches(data, args.tokens_per_step, rng)]
    start = time.time()
    for step, (size, members) in enumerate(plan):
        ids, learn = tensors(data, size, members, args.device)
        with torch.autocast(args.device, torch.bfloat16):
            hidden = model(ids[:, :-1])
            logits = model.logits(hidden[learn[:, 1:]])
        loss = F.cross_entropy(logits.float(), ids[:, 1:][learn[:, 1:]])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(plan))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 200 == 0 or step + 1 == len(plan):
            print(f"step {step + 1} of {len(plan)}, loss {loss.item():.4f}, {time.time() - start:.0f} s", flush=True)
    model.save(args.out)


if __name__ == "__main__":
    main()
