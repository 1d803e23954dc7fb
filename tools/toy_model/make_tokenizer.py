#!/usr/bin/env python3
"""Trains the toy model's byte-level BPE and writes tokenizer.json and tokenizer_config.json.

make_tokenizer.py [--out models/toy]; needs the package tokenizers.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from corpus import Corpus

HERE = Path(__file__).parent
VOCABULARY = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>")
# How Qwen models split text before BPE, so that the same pre-tokeniser serves them and the toy.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def training_text() -> list[str]:
    texts = []
    for sample in Corpus().generate(60000, seed=7):
        if isinstance(sample, str):
            texts.append(sample)
        else:
            texts += [message[key] for message in sample for key in ("role", "content", "thought") if key in message]
    return texts


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(ADDED),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "models" / "toy")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    content = json.loads(train().to_str())
    first = len(content["model"]["vocab"])
    assert first == VOCABULARY - len(SPECIAL) - len(ADDED), f"too little text: {first} entries"
    content["added_tokens"] = [
        {
            "id": first + i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token in SPECIAL,
        }
        for i, token in enumerate(SPECIAL + ADDED)
    ]
    text = json.dumps(content, ensure_ascii=False, indent=1)
    Tokenizer.from_str(text)
    (args.out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")

    decoder = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in content["added_tokens"]
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "chat_template": (HERE / "chat_template.jinja").read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
