#!/usr/bin/env python3
"""Makes tests/tokenizer/golden: tiny tokenizers of every kind that Quire reads, and what the tokenizers library
(Hugging Face's, the reference) makes of hard texts with them. Needs `pip install tokenizers==0.23.3 sentencepiece`.
Training breaks ties at random, so the files differ from run to run.

NAME.json is a tokenizer.json. NAME.cases.json is a list: {text, ids, ids_plain, decoded, decoded_skip} for a text
with and without special tokens and its ids decoded (plain ids with, ids without special tokens), and
{ids, decoded, decoded_skip} for ids drawn at random.
"""
import io
import json
import random
import sys
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/tokenizer/golden"
META = "\u2581"

TRAINING = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "Quires are gatherings of pages; choirs are gatherings of voices. Both are read in order.",
    "In 2024 there were 366 days, 12 months and 52 weeks; pi is about 3.14159.",
    "def read(path):\n    with open(path) as file:\n        return file.read()\n",
    "Falsches \u00dcben von Xylophonmusik qu\u00e4lt jeden gr\u00f6\u00dferen Zwerg.",
    "Le caf\u00e9 d\u00e9j\u00e0 servi, l'\u00e9t\u00e9 s'en va. \u00bfQu\u00e9 tal, ni\u00f1o?",
    "\u041c\u043e\u0440\u043e\u0437 \u0438 \u0441\u043e\u043b\u043d\u0446\u0435, \u0434\u0435\u043d\u044c \u0447\u0443\u0434\u0435\u0441\u043d\u044b\u0439.",
    "\u4eca\u65e5\u306f\u826f\u3044\u5929\u6c17\u3067\u3059\u306d\u3002\u660e\u65e5\u3082\u826f\u3044\u5929\u6c17\u3067\u3057\u3087\u3046\u3002",
]

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  b  ", "\n", "\n\n\n", "\t\ttabs\tand\nlines\r\nand\rreturns",
    "The quick brown fox jumps over the lazy dog.", "the QUICK Brown fOX", "I'll don't WE'VE it's 'quoted'",
    "Numbers 0 1 12 123 1234 12345 3.14 1,000,000 \u0663\u0664 \u00b2\u00bd \u2167",
    "Punctuation!?... (a) [b] {c} <d> #e @f $g %h ^i &j *k _l ~m `n` \u3002\u300c\u300d\u00ab\u00bb\u2014\u2026",
    "x" * 60, " " * 40, "ab" * 40 + " " * 17 + "!" * 23, "\u00e9" * 20, "\u4eca" * 9 + "\u9f98" * 5,
    "caf\u00e9 cafe\u0301 \u212b \ufb01 \uff21\uff22\uff23 \u2460 \u33a1 \u1e9b\u0323 \u0130I\u0131i \u00df\u1e9e \u03a3\u03c3\u03c2",
    "\uff25\u0301 \ufb01\u0301 e\u0301\u0323 \u3000\u0301 a\u0301\u0301\u0301\u0301\u0301 \u0301 \u0301\u0301 1\u20e3",
    "\u1100\u1161\u11a8 \uac01 \ud55c\uad6d\uc5b4", "\u0915\u094d\u0937\u093f \u0ba8\u0bbf \u0e19\u0e49\u0e33", "\u0600\u0661 \u0605a",
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea\U0001f1eb \U0001f44d\U0001f3fd",
    "\u05e9\u05c1\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u200f\u202eabc\u202c", "\u4eca\u65e5\u306f\u3001\u4e16\u754c\u3002\u4f60\u597d abc\u4e2d\u6587def",
    "\u041c\u043e\u0440\u043e\u0437 \u0438 \u0441\u043e\u043b\u043d\u0446\u0435", "Gr\u00f6\u00dfere Zwerge \u00dcBEN", "\x00\x01\x07\x08\x0b\x0c\x1b\x1f\x7f\x80\x85\x8f\x9f\xa0\xad",
    "zero\u200bwidth\u200cand\u200djoiners\u2060\ufeff", "\u2028\u2029\u1680\u2003\u202f\u205f\u3000spaces", "\ufffd \ufffe \U0010ffff \ue000",
    META, META + META + "a", "a" + META + "b", "a " + META + " b", "<0x41> <0xZZ> <0x0A> <unk>", "</w> a</w> ##a a##b @@",
    "<s>hello</s>", "hello <s> world </s>", "  <mask>  word<mask>word  <mask>", "<tag>a <tag> b<TAG>  c", "word wordy aword word.",
    "<s><s>  <s>a</s></s>", "<mask>", " <mask>", "<pad><pad>x", "a<unk>b", "\u00e9<tag>\u00e9", "``quotes'' and \"more\"",
    "def f(x):\n    return  x  +  1\n\n\n# end  ", "mixed\u4e2d\u6587and\u0440\u0443\u0441\u0441\u043a\u0438\u0439and\U0001f600text", "\u9f98\u9f98 \u9f98 \U0001f984\U0001f984 q\u9f98q",
    "a\r\nb\r\n\r\nc", "trailing space ", "\u00a0nbsp\u00a0", "tab\there", "...\u2026...", "1a2b3c", "a1\u4e2d2b",
]


def charsmap():
    """A small map of our own, compiled by SentencePiece."""
    rules = {"\uff21": "A", "\uff22": "B", "\uff23": "C", "\uff25": "E", "\ufb01": "fi", "e\u0301": "\u00e9", "\t": " ", "\r": " ",
             "\n": " ", "\u200d": "", "\u2460": "1", "\u3000": " ", "\u2026": "...", "\u00a0": " ", "\u00ad": "", "\u200b": " ",
             "\u1100\u1161\u11a8": "\uac01", "\u33a1": "m2", "\u212b": "\u00c5", "\x07": "", "ab\u0301": "Q"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for source, target in rules.items():
            file.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (source, target)) + "\n")
        file.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TRAINING * 4), model_writer=model, vocab_size=200, hard_vocab_limit=False,
            normalization_rule_tsv=file.name, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


def added(identity, content, **flags):
    token = {"id": identity, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    return token | flags


def with_parts(tokenizer, normalizer, pre_tokenizer, decoder):
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    return tokenizer


def finish(tokenizer, specials=("<unk>", "<s>", "</s>", "<pad>"), fallback=(), model=None):
    """The file with special tokens, byte tokens and added tokens put in, and the model's keys in `model` set."""
    config = json.loads(tokenizer.to_str())
    table = config["model"]["vocab"]
    is_list = isinstance(table, list)
    front = list(specials) + [f"<0x{byte:02X}>" for byte in fallback]
    if is_list:
        config["model"]["vocab"] = [[text, 0.0] for text in front] + [p for p in table if p[0] not in front]
    else:
        texts = front + [text for text, _ in sorted(table.items(), key=lambda item: item[1]) if text not in front]
        config["model"]["vocab"] = {text: identity for identity, text in enumerate(texts)}
    size = len(config["model"]["vocab"])
    tokens = [added(i, text, special=True) for i, text in enumerate(specials)]
    tokens += [added(size, "<mask>", lstrip=True, special=True), added(size + 1, "<tag>", rstrip=True, normalized=True),
               added(size + 2, "word", single_word=True), added(size + 3, "\u9f98\u9f98", normalized=True)]
    config["added_tokens"] = tokens
    config["model"].update(model or {})
    return config


def bpe(normalizer, pre_tokenizer, decoder, vocab_size=400, alphabet=None, **options):
    tokenizer = with_parts(Tokenizer(models.BPE(**options)), normalizer, pre_tokenizer, decoder)
    affixes = {key: options[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in options}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=alphabet or [], **affixes)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def unigram(normalizer, pre_tokenizer, decoder):
    tokenizer = with_parts(Tokenizer(models.Unigram()), normalizer, pre_tokenizer, decoder)
    trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"])
    tokenizer.train_from_iterator(TRAINING * 4, trainer)
    return tokenizer


def template(config, single):
    tokenizer = Tokenizer.from_str(json.dumps(config))
    names = [piece for piece in single.split() if piece != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, tokenizer.token_to_id(name)) for name in sorted(set(names))])
    return json.loads(tokenizer.to_str())


def llama_decoder(strip=True):
    steps = [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)


def sentencepiece_kinds():
    spm = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    metaspace = pre_tokenizers.Metaspace(META, prepend_scheme="first", split=False)
    config = finish(bpe(None, metaspace, llama_decoder()), fallback=range(256), model=spm)
    yield "bpe_metaspace_first", template(config, "<s> $A")

    llama = normalizers.Sequence([normalizers.Prepend(META), normalizers.Replace(" ", META)])
    config = finish(bpe(llama, None, llama_decoder()), fallback=range(256), model=spm)
    yield "bpe_prepend_replace", template(config, "<s> $A </s>")

    always = pre_tokenizers.Metaspace(META, prepend_scheme="always")
    config = finish(bpe(None, always, decoders.Metaspace(META, prepend_scheme="always")),
                    model={"unk_token": "<unk>", "fuse_unk": False})
    yield "bpe_metaspace_always", config

    never = pre_tokenizers.Metaspace(META, prepend_scheme="never")
    config = finish(bpe(None, never, decoders.Metaspace(META, prepend_scheme="never")),
                    model={"unk_token": "<unk>", "fuse_unk": True})
    yield "bpe_metaspace_never", config

    gemma = bpe(normalizers.Replace(" ", META), pre_tokenizers.Split(" ", "merged_with_previous"), llama_decoder(False))
    config = finish(gemma, fallback=[byte for byte in range(256) if byte != 0xF0], model=spm)  # emoji are unknown
    yield "bpe_replace_only", template(config, "<s> $A")


def unigram_kinds():
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    precompiled = normalizers.Precompiled(charsmap())
    t5 = unigram(precompiled, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                 decoders.Metaspace())
    yield "unigram_precompiled", template(finish(t5), "$A </s>")

    trimmed = normalizers.Sequence([precompiled, normalizers.Strip(left=False, right=True),
                                    normalizers.Replace(Regex(" {2,}"), META)])
    newer = unigram(trimmed, pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first"))
    yield "unigram_trimmed", template(finish(newer), "<s> $A </s>")

    albert = unigram(
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                              normalizers.StripAccents(), normalizers.Lowercase(), precompiled, spaces]),
        pre_tokenizers.Metaspace(), decoders.Metaspace())
    yield "unigram_albert", template(finish(albert), "<s> $A </s>")

    nmt = unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces]),
                  pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama_decoder())
    yield "unigram_byte_fallback", template(finish(nmt, fallback=range(256), model={"byte_fallback": True}), "<s> $A")


def byte_level_kinds():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                      pre_tokenizers.ByteLevel(add_prefix_space=True)])
    yield "bytes_digits", finish(bpe(None, digits, decoders.ByteLevel(), 600, alphabet))

    punctuation = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"),
                                           pre_tokenizers.Digits(), level])
    config = finish(bpe(normalizers.NFC(), punctuation, decoders.ByteLevel(), 600, alphabet), model={"ignore_merges": True})
    yield "bytes_punctuation", config

    clip = bpe(normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
               pre_tokenizers.Sequence([
                   pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", True),
                   level]),
               decoders.ByteLevel(), 800, alphabet, end_of_word_suffix="</w>", unk_token="<unk>")
    config = finish(clip)
    texts = config["model"]["vocab"]
    config["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", texts["</s>"]], "cls": ["<s>", texts["<s>"]],
                                "trim_offsets": False, "add_prefix_space": False}
    yield "bytes_word_suffix", config

    normal = bpe(normalizers.ByteLevel(), pre_tokenizers.Split(Regex("\u0120?[a-zA-Z]+"), "isolated"), decoders.ByteLevel(),
                 600, alphabet)
    yield "bytes_normalizer", finish(normal)


def word_kinds():
    gpt = bpe(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder("</w>"),
              end_of_word_suffix="</w>", unk_token="<unk>")
    config = finish(gpt)
    config["post_processor"] = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]}
    yield "words_suffix", config

    prefix = bpe(normalizers.Strip(), pre_tokenizers.Whitespace(), decoders.Sequence([decoders.Replace("##", "")]),
                 continuing_subword_prefix="##", unk_token="<unk>", fuse_unk=True)
    yield "words_prefix", finish(prefix)


def cases_of(tokenizer):
    draw = random.Random(7)
    for text in TEXTS:
        ids, plain = tokenizer.encode(text).ids, tokenizer.encode(text, add_special_tokens=False).ids
        yield {"text": text, "ids": ids, "ids_plain": plain, "decoded": tokenizer.decode(plain, skip_special_tokens=False),
               "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True)}
    size = tokenizer.get_vocab_size()
    for count in range(60):
        ids = [draw.randrange(min(size, 270 if draw.random() < 0.5 else size)) for _ in range(count % 12 + 1)]
        yield {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
               "decoded_skip": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    print(f"tokenizers {tokenizers.__version__}")
    GOLDEN.mkdir(exist_ok=True)
    for kinds in (sentencepiece_kinds, unigram_kinds, byte_level_kinds, word_kinds):
        for name, config in kinds():
            if config["model"].get("type") == "BPE":
                config["model"]["merges"] = [list(pair) for pair in config["model"]["merges"]]
            text = json.dumps(config, ensure_ascii=False, separators=(",", ":"))
            tokenizer = Tokenizer.from_str(text)
            (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            lines = [json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases_of(tokenizer)]
            (GOLDEN / f"{name}.cases.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
            print(f"{name}: {tokenizer.get_vocab_size()} tokens, {len(lines)} cases")


if __name__ == "__main__":
    sys.exit(main())
