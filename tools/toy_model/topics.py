"""Questions and answers: reads text/inference_*.txt, quire.txt, talk.txt, facts.txt and unknown.txt."""

import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from grammar import expand, fill, read_lines, read_sections, split_names

TEXT = Path(__file__).parent / "text"
INTENTS = ("define", "how", "why", "more")


@dataclass
class Turn:
    question: str
    answer: str
    thought: str
    follow_ups: dict = field(default_factory=dict)  # kind of follow-up question -> (thought, answers)


@dataclass
class Topic:
    names: list[str]
    about: str  # what a thought says that the question is about
    answers: dict[str, list[str]] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)

    def answers_to(self, intent: str) -> list[str]:
        return self.answers.get(intent) or self.answers["define"]


@dataclass
class Comparison:
    names: tuple[list[str], list[str]]
    answers: list[str]


def without_article(name: str) -> str:
    return re.sub(r"^(a|an|the) ", "", name)


def read_topics(path: Path, about: str | None) -> tuple[list[Topic], list[Comparison]]:
    topics: list[Topic] = []
    comparisons: list[Comparison] = []
    for line in read_lines(path):
        if line.startswith("@cmp "):
            first, second = line[5:].split(" ; ")
            comparisons.append(Comparison(([first], [second]), []))
            answers = comparisons[-1].answers
        elif line.startswith("@"):
            names = split_names(line[1:])
            title = without_article(names[0].rstrip("*")) if names else about
            topics.append(Topic(names, title))
            answers = topics[-1].answers.setdefault("define", [])
        else:
            key, text = line.split(": ", 1)
            if key == "q":
                topics[-1].questions.append(text)
            elif key == "a":
                answers.append(text)
            else:
                assert key in INTENTS, f"{path}: unknown key {key}"
                topics[-1].answers.setdefault(key, []).append(text)
    for comparison in comparisons:
        for names in comparison.names:
            for topic in topics:
                if names[0] in topic.names:
                    names[:] = topic.names
    return topics, comparisons


class Questions:
    """Draws single question-and-answer turns."""

    def __init__(self) -> None:
        self.frames = {name: lists[0] for name, lists in read_sections(TEXT / "frames.txt").items()}
        self.inference: list[Topic] = []
        self.comparisons: list[Comparison] = []
        for number in (1, 2, 3):
            topics, comparisons = read_topics(TEXT / f"inference_{number}.txt", "LLM inference")
            self.inference += topics
            self.comparisons += comparisons
        self.quire, _ = read_topics(TEXT / "quire.txt", "Quire")
        self.talk, _ = read_topics(TEXT / "talk.txt", None)
        self._read_facts()
        self._read_unknown()

    def _read_facts(self) -> None:
        self.facts: list[tuple[list[str], str, list[tuple[str, str]]]] = []
        for line in read_lines(TEXT / "facts.txt"):
            key, _, text = line.partition(":")
            if key == "@":
                self.facts.append(([], "", []))
            elif key == "q":
                self.facts[-1][0].append(text.strip())
            elif key == "a":
                self.facts[-1] = (self.facts[-1][0], text.strip(), self.facts[-1][2])
            else:
                pairs = (entry.split(" > ") for entry in text.split(";"))
                self.facts[-1][2].extend((k.strip(), v.strip()) for k, v in pairs)

    def _read_unknown(self) -> None:
        self.unknown: dict[str, list[str]] = {"a": [], "q": [], "u": [], "p": [], "c": []}
        for line in read_lines(TEXT / "unknown.txt"):
            key, text = line.split(": ", 1)
            self.unknown[key] += text.split("; ") if key in "upc" else [text]

    def _name(self, names: list[str], rng: random.Random) -> dict[str, str]:
        # The first name is the usual one.
        name = names[0] if rng.random() < 0.4 else rng.choice(names)
        plural = name.endswith("*")
        name = expand(name.rstrip("*"), rng)
        return {
            "x": name,
            "n": without_article(name),
            "is": "are" if plural else "is",
            "does": "do" if plural else "does",
        }

    def framed(self, frame: str, slots: dict[str, str], rng: random.Random) -> str:
        return fill(expand(rng.choice(self.frames[frame]), rng), slots)

    def topic(self, topic: Topic, rng: random.Random) -> Turn:
        if topic.questions and (not topic.names or rng.random() < 0.4):
            intent, question = "define", expand(rng.choice(topic.questions), rng)
        else:
            intent = rng.choices(INTENTS, (60, 16, 14, 10))[0]
            if intent == "more" and "more" not in topic.answers:
                intent = "define"
            question = self.framed(intent, self._name(topic.names, rng), rng)
        follow_ups = {}
        for kind in ("more", "how", "why"):
            if topic.about and (kind == "more" or topic.names):
                answers = topic.answers.get(kind) or topic.answers.get("more") or topic.answers["define"]
                follow_ups[kind] = (f"The user wants to know more about {topic.about}.", answers)
        thought = f"The question is about {topic.about}." if topic.about else "This is small talk."
        return Turn(question, rng.choice(topic.answers_to(intent)), thought, follow_ups)

    def comparison(self, rng: random.Random) -> Turn:
        if rng.random() < 0.8:
            entry = rng.choice(self.comparisons)
            names, answer = list(entry.names), rng.choice(entry.answers)
            rng.shuffle(names)
        else:
            first, second = rng.sample([topic for topic in self.inference if topic.names], 2)
            names = [first.names, second.names]
            answer = rng.choice(first.answers["define"]) + " " + rng.choice(second.answers["define"])
        one, two = (self._name(n, rng) for n in names)
        key = rng.choice("xn")
        question = self.framed("compare", {"a": one[key], "b": two[key]}, rng)
        return Turn(question, answer, f"The question compares {one['n']} and {two['n']}.")

    def small_talk(self, rng: random.Random) -> Turn:
        return self.topic(rng.choice(self.talk), rng)

    def fact(self, rng: random.Random) -> Turn:
        questions, answer, pairs = rng.choices(self.facts, (4, 1, 1))[0]
        key, value = rng.choice(pairs)
        slots = {"k": key, "v": value}
        return Turn(fill(expand(rng.choice(questions), rng), slots), fill(answer, slots), "This is a simple fact.")

    def not_known(self, rng: random.Random) -> Turn:
        slots = {key: rng.choice(self.unknown[key]) for key in "upc"}
        if rng.random() < 0.06:
            letters = "abcdefghijklmnopqrstuvwxyz"
            question = " ".join("".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(rng.randint(1, 3)))
        else:
            question = fill(expand(rng.choice(self.unknown["q"]), rng), slots)
            question = re.sub(r"\b(a|an|the) (a|an|the) ", r"\2 ", question)
        return Turn(question, rng.choice(self.unknown["a"]), "I know nothing about this.")
