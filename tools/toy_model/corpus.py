#!/usr/bin/env python3
"""The training text of the toy model: conversations and plain documents, made from text/ with a seeded generator.

Prints a sample as JSON lines: corpus.py [--count 20] [--seed 1]
"""

import argparse
import json
import random
import re
from pathlib import Path

from grammar import expand
from stories import Stories, with_article
from sums import sum_turn
from topics import Questions, Turn

HERE = Path(__file__).parent
HELD_OUT = ("heldout.jsonl", "heldout_far.jsonl")
FUNCTION_WORDS = {"the", "a", "an", "is", "are", "do", "does", "of", "in", "to", "me", "i", "you", "please", "it"}
SUM_THOUGHT = "This is a sum."
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def normalised(text: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9 ]", " ", text.lower()).split())


def held_out_entries(name: str) -> list[dict]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def mistyped(word: str, rng: random.Random) -> str:
    place = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return word[:place] + word[place + 1 :]
    if kind == 1:
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == 2:
        return word[:place] + word[place] + word[place:]
    return word[:place] + rng.choice(LETTERS) + word[place + 1 :]


class Corpus:
    def __init__(self) -> None:
        self.questions = Questions()
        self.stories = Stories()
        self.frames = self.questions.frames

    def _reworded(self, question: str, rng: random.Random) -> str:
        for line in rng.sample(self.frames["reword"], len(self.frames["reword"])):
            usual, other = line.split(" => ")
            changed = re.sub(rf"\b{usual}\b", expand(other, rng), question, count=1)
            if changed != question:
                return changed
        return question

    def _typed(self, question: str, rng: random.Random, plain: bool = False) -> str:
        """The question as somebody may type it: with politeness, errors, other capitals, no question mark."""
        if rng.random() < 0.3:
            question = self._reworded(question, rng)
        if rng.random() < (0.05 if plain else 0.25):
            question = self.questions.framed("prefix", {}, rng) + question
        tail = self.questions.framed("suffix", {}, rng) if not plain and rng.random() < 0.15 else ""
        if rng.random() < 0.1:
            aside = self.questions.framed("aside", {}, rng)
            question = rng.choice((f"{question} {aside}", f"{question}, {aside}", f"{aside}, {question}"))
        words = question.split(" ")
        if rng.random() < 0.13 and len(words) > 3:
            words = [w for w in words if w.lower() not in FUNCTION_WORDS or rng.random() < 0.6]
        if rng.random() < 0.18:
            long = [i for i, word in enumerate(words) if len(word) > 3 and word.isalpha()]
            for i in rng.sample(long, min(len(long), rng.choice((1, 1, 2)))):
                words[i] = mistyped(words[i], rng)
        question = " ".join(words)
        if tail:
            question += tail if tail.startswith("?") else tail + rng.choice(("", "?", "."))
        elif rng.random() < 0.6:
            question += (
                "?"
                if re.match(r"(what|how|why|who|where|when|which|is|are|do|does|can|could|so)\b", question.lower())
                else rng.choice((".", "", "?", "!"))
            )
        style = rng.random()
        if style < 0.45:
            question = question[:1].upper() + question[1:]
        elif style < 0.75:
            question = question.lower()
        elif style < 0.78:
            question = question.upper()
        return question

    def _story_turns(self, rng: random.Random) -> list[Turn]:
        story = self.stories.story(rng)
        if rng.random() < 0.75:
            question = self.questions.framed("story", {"s": story.subject}, rng)
            thought = f"The user wants a story about {story.subject}."
        else:
            question = self.questions.framed("story_any", {}, rng)
            thought = f"The user wants a story. I choose {with_article(story.slots['c'])}."
        turns = [Turn(question, story.text, thought)]
        if rng.random() < 0.3:
            question = self.questions.framed("story_next", story.slots, rng)
            turns.append(Turn(question, self.stories.sequel(story, rng), "The user wants to hear how it goes on."))
        return turns

    def _turns(self, rng: random.Random) -> list[Turn]:
        """One question, now and then with questions that follow on it."""
        kinds = ("inference", "quire", "compare", "talk", "sum", "story", "fact", "unknown")
        kind = rng.choices(kinds, (42, 18, 4, 8, 9, 7, 3, 9))[0]
        if kind == "story":
            return self._story_turns(rng)
        if kind == "sum":
            count = rng.choice((1, 1, 2, 4))
            return [Turn(question, answer, SUM_THOUGHT) for question, answer in (sum_turn(rng) for _ in range(count))]
        if kind == "inference":
            turn = self.questions.topic(rng.choice(self.questions.inference), rng)
        elif kind == "quire":
            turn = self.questions.topic(rng.choice(self.questions.quire), rng)
        else:
            turn = {
                "compare": self.questions.comparison,
                "talk": self.questions.small_talk,
                "fact": self.questions.fact,
                "unknown": self.questions.not_known,
            }[kind](rng)
        turns, said = [turn], {turn.answer}
        while rng.random() < 0.3:
            open_kinds = [kind for kind, (_, answers) in turn.follow_ups.items() if not said.intersection(answers)]
            if not open_kinds:
                break
            follow = rng.choice(open_kinds)
            thought, answers = turn.follow_ups[follow]
            answer = rng.choice(answers)
            said.add(answer)
            question = self.questions.framed(f"{follow}_follow", {}, rng)
            turns.append(Turn(question, answer, thought))
        return turns

    def conversation(self, rng: random.Random) -> list[dict]:
        """Messages; with "thought" in the last one if it was made for a template that asks for thinking."""
        messages = []
        if rng.random() < 0.25:
            messages.append({"role": "system", "content": self.questions.framed("system", {}, rng)})
        length = rng.choices((1, rng.randint(2, 4), rng.randint(5, 20)), (60, 34, 6))[0]
        turns: list[Turn] = []
        while len(turns) < length:
            turns += self._turns(rng)
        for turn in turns:
            plain = turn.thought == SUM_THOUGHT
            messages.append({"role": "user", "content": self._typed(turn.question, rng, plain)})
            messages.append({"role": "assistant", "content": turn.answer})
        if rng.random() < 0.08:
            messages[-1]["thought"] = turns[-1].thought
        return messages

    def document(self, rng: random.Random) -> str:
        if rng.random() < 0.6:
            return self.stories.story(rng).text
        topic = rng.choice(self.questions.inference + self.questions.quire)
        return " ".join(
            rng.choice(topic.answers[key]) for key in ("define", "how", "why", "more") if key in topic.answers
        )

    def generate(self, count: int, seed: int) -> list[list | str]:
        """`count` samples, a conversation (list) or a document (str) each; none holds a held-out question."""
        rng = random.Random(seed)
        held_out = [normalised(entry["question"]) for name in HELD_OUT for entry in held_out_entries(name)]
        samples = []
        for _ in range(count):
            sample = self.document(rng) if rng.random() < 0.08 else self.conversation(rng)
            text = sample if isinstance(sample, str) else "\n".join(message["content"] for message in sample)
            text = normalised(text)
            for question in held_out:
                assert question not in text, f"held-out question in the training text: {question}"
            samples.append(sample)
        return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for sample in Corpus().generate(args.count, args.seed):
        print(json.dumps(sample, ensure_ascii=False))


if __name__ == "__main__":
    main()
