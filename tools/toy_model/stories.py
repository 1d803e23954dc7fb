"""Short stories from the grammar in text/stories.txt."""

import random
from dataclasses import dataclass
from pathlib import Path

from grammar import expand, fill, read_sections

FEMALE = {"hen", "witch", "fairy", "mermaid", "princess", "queen", "girl", "grandmother", "cow"}
MALE = {"rooster", "wizard", "knight", "prince", "king", "boy", "grandfather"}


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" and not noun.startswith(("uni", "one")) else f"a {noun}"


def made_up(rng: random.Random) -> str:
    """A word that no text holds: it teaches the model to take over what it was asked for, letter by letter."""
    return "".join(
        rng.choice("bdfgklmnprstvwz") + rng.choice("aeiou") + rng.choice(("", "", "l", "n", "r", "s", "m"))
        for _ in range(rng.choice((1, 2, 2, 3)))
    ) + rng.choice(("", "k", "t", "p"))


@dataclass
class Story:
    text: str
    subject: str  # for "a story about ..."
    slots: dict[str, str]


class Stories:
    def __init__(self) -> None:
        self.sections = read_sections(Path(__file__).parent / "text" / "stories.txt")
        self.characters = " ".join(self.sections["characters"][0]).split()
        self.things = " ".join(self.sections["things"][0]).split()
        self.female = " ".join(self.sections["names_f"][0]).split()
        self.male = " ".join(self.sections["names_m"][0]).split()

    def _line(self, section: str, slots: dict[str, str], rng: random.Random) -> str:
        return fill(expand(rng.choice(self.sections[section][0]), rng), slots)

    def story(self, rng: random.Random) -> Story:
        character, friend = rng.sample(self.characters, 2)
        if rng.random() < 0.25:
            character = rng.choice(self.things) if rng.random() < 0.6 else made_up(rng)
        female = character in FEMALE or (character not in MALE and rng.random() < 0.5)
        name = rng.choice(self.female if female else self.male)
        if rng.random() < 0.1:
            name = made_up(rng).capitalize()
        friend_female = friend in FEMALE or (friend not in MALE and rng.random() < 0.5)
        friend_name = rng.choice([n for n in (self.female if friend_female else self.male) if n != name])
        he, his, him = ("she", "her", "her") if female else ("he", "his", "him")
        slots = {
            "c": character,
            "n": name,
            "he": he,
            "He": he.capitalize(),
            "his": his,
            "him": him,
            "f": with_article(friend),
            "m": friend_name,
            "adj": expand(rng.choice(self.sections["adjectives"][0]), rng),
            "p": expand(rng.choice(self.sections["places"][0]), rng),
            "o": expand(rng.choice(self.sections["objects"][0]), rng),
        }
        kind = rng.random()
        if kind < 0.12:
            subject = name
            slots["c"] = "girl" if female else "boy"
        elif kind < 0.3:
            subject = f"{with_article(character)} and {with_article(friend)}"
        elif kind < 0.4:
            subject = f"{with_article(character)} {rng.choice(('called', 'named'))} {name}"
        elif kind < 0.5:
            adjective = slots["adj"]
            subject = f"{with_article(adjective)} {character}"
        else:
            subject = with_article(slots["c"])
        plot = [fill(expand(line, rng), slots) for line in rng.choice(self.sections["plot"])]
        sentences = [self._line("open", slots, rng), *plot, self._line("close", slots, rng)]
        text = " ".join(sentences).replace(" a old ", " an old ").replace(" a adj", " an adj")
        return Story(text, subject, slots)

    def sequel(self, story: Story, rng: random.Random) -> str:
        return self._line("next", story.slots, rng)
