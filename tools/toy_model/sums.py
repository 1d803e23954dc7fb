"""Small sums, and the pairs that are held back from training."""

import random

WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/"}
PATTERNS = (
    "what is {a} {op} {b}",
    "what's {a} {op} {b}",
    "{a} {op} {b}",
    "how much is {a} {op} {b}",
    "can you tell me what {a} {op} {b} is",
    "calculate {a} {op} {b}",
    "compute {a} {op} {b}",
    "what does {a} {op} {b} make",
    "and {a} {op} {b}",
    "tell me {a} {op} {b}",
    "{a} {op} {b} equals",
    "what is the result of {a} {op} {b}",
    "do you know {a} {op} {b}",
    "what number is {a} {op} {b}",
    "what do I get for {a} {op} {b}",
    "what would {a} {op} {b} be",
    "solve {a} {op} {b}",
)
SPECIAL = {
    "plus": (
        "add {a} and {b}",
        "add {a} to {b}",
        "if I add {a} and {b}, what do I get",
        "adding {a} to {b} gives",
        "what do you get when you add {a} to {b}",
        "what do {a} and {b} make",
        "what is the sum of {a} and {b}",
        "{a} and {b} together",
        "I have {a} apples and get {b} more. How many do I have",
    ),
    "minus": (
        "subtract {b} from {a}",
        "what is left of {a} when I take away {b}",
        "if I take {b} from {a}, what do I get",
        "what is the difference between {a} and {b}",
        "take {b} from {a}",
        "I have {a} apples and eat {b}. How many are left",
    ),
    "times": (
        "multiply {a} by {b}",
        "what do you get when you multiply {a} by {b}",
        "multiply {a} and {b}",
        "what is the product of {a} and {b}",
    ),
    "divided by": ("divide {a} by {b}",),
}
TOO_LARGE = "That sum is too large for me: I only do small ones, with two numbers below a hundred."


def held_out(a: int, op: str, b: int) -> bool:
    """One larger pair in twenty never occurs in training, so that what the model computes itself can be measured."""
    return op in ("plus", "minus") and max(a, b) > 12 and min(a, b) > 1 and (a * 31 + b * 17 + len(op) * 7) % 20 == 0


def result(a: int, op: str, b: int) -> int:
    return {"plus": a + b, "minus": a - b, "times": a * b, "divided by": a // b if b else 0}[op]


def numbers(rng: random.Random) -> tuple[int, str, int]:
    op = rng.choices(tuple(SIGNS), (45, 28, 20, 7))[0]
    limit = rng.choice((10, 20, 99))
    a, b = rng.randint(0, limit), rng.randint(0, limit)
    if op == "minus":
        a, b = max(a, b), min(a, b)
    elif op in ("times", "divided by"):
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        if op == "divided by":
            b = max(b, 1)
            a *= b
    return a, op, b


def answer(a: int, op: str, b: int) -> str:
    return f"{a} {op} {b} is {result(a, op, b)}."


def question(a: int, op: str, b: int, rng: random.Random) -> str:
    pattern = rng.choice(SPECIAL[op] if rng.random() < 0.2 else PATTERNS)
    kind = rng.random()
    if kind < 0.45:
        sign = SIGNS[op] if op != "times" else rng.choice("*x")
        spaced = pattern.replace("{op}", sign)
        return (spaced.replace(f" {sign} ", sign) if rng.random() < 0.5 else spaced).format(a=a, b=b)
    if kind < 0.6 and max(a, b) <= 20:
        return pattern.format(a=WORDS[a], op=op, b=WORDS[b])
    return pattern.format(a=a, op=op, b=b)


def sum_turn(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.04:
        large = rng.choice(("{a} {op} {b}", "{a} {op} {b} {op} {c}")).format(
            a=rng.randint(100, 9999), op=rng.choice("+-*/"), b=rng.randint(10, 9999), c=rng.randint(1, 99)
        )
        return rng.choice(("what is ", "calculate ", "", "how much is ")) + large, TOO_LARGE
    while True:
        a, op, b = numbers(rng)
        if not held_out(a, op, b):
            return question(a, op, b, rng), answer(a, op, b)
