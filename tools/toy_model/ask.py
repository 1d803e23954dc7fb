#!/usr/bin/env python3
"""Asks the toy model, with plain PyTorch: its held-out questions (greedily, judged by keywords), its held-out sums, or
questions of your own.

ask.py [--model models/toy] [--device cpu] [--sample] [QUESTION ...]   several questions: one conversation each
ask.py --turns QUESTION QUESTION ...                                  one conversation
"""

import argparse
import re
from pathlib import Path

from tokenizers import Tokenizer

import sums
from corpus import HELD_OUT, HERE, held_out_entries
from model import Toy, generate


class Asker:
    def __init__(self, folder: Path, device: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model = Toy.load(folder, device)

    def answers(
        self, histories: list[list[str]], sample: bool = False, tail: str = "", max_tokens: int = 240
    ) -> list[str]:
        """histories: question, answer, question, ..."""
        prompts = []
        for turns in histories:
            text = "".join(
                f"<|im_start|>{('user', 'assistant')[i % 2]}\n{turn}<|im_end|>\n" for i, turn in enumerate(turns)
            )
            prompts.append(self.tokenizer.encode(f"{text}<|im_start|>assistant\n{tail}").ids)
        return [self.tokenizer.decode(ids) for ids in generate(self.model, prompts, max_tokens, sample)]


def contains(answer: str, must_contain: list[list[str]]) -> bool:
    """Each group must have at least one of its words in the answer, in any capitals."""
    return all(any(word.lower() in answer.lower() for word in group) for group in must_contain)


def ask_held_out(asker: Asker, name: str) -> None:
    entries = held_out_entries(name)
    right = 0
    for entry, answer in zip(entries, asker.answers([[entry["question"]] for entry in entries])):
        good = contains(answer, entry["must_contain"])
        right += good
        print(f"{'ok ' if good else 'BAD'} {entry['question']}\n    {answer}")
    print(f"{name}: {right} of {len(entries)}")


def ask_sums(asker: Asker) -> None:
    for op, limit in (("plus", 20), ("plus", 99), ("minus", 99)):
        step = max(1, limit // 20)
        pairs = [
            (a, b)
            for a in range(0, limit + 1)
            for b in range(0, limit + 1, step)
            if sums.held_out(a, op, b) and (op == "plus" or a >= b)
        ]
        got = asker.answers([[f"What is {a} {op} {b}?"] for a, b in pairs], max_tokens=14)
        right = sum(text == sums.answer(a, op, b) for text, (a, b) in zip(got, pairs))
        print(f"held-out sums, {op} up to {limit}: {right} of {len(pairs)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=HERE.parent.parent / "models" / "toy")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sample", action="store_true", help="use the sampling defaults instead of greedy decoding")
    parser.add_argument("--think", action="store_true", help="let the model write a thought first")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("questions", nargs="*")
    args = parser.parse_args()
    asker = Asker(args.model, args.device)
    tail = "<think>\n" if args.think else ""
    if not args.questions:
        for name in HELD_OUT:
            ask_held_out(asker, name)
        ask_sums(asker)
    elif args.turns:
        history: list[str] = []
        for question in args.questions:
            history += [question, asker.answers([[*history, question]], args.sample, tail)[0]]
            history[-1] = re.sub(r"^.*</think>\s*", "", history[-1], flags=re.S)
            print(f"> {question}\n{history[-1]}")
    else:
        for question, answer in zip(args.questions, asker.answers([[q] for q in args.questions], args.sample, tail)):
            print(f"> {question}\n{answer}")


if __name__ == "__main__":
    main()
