#!/usr/bin/env python3
"""Continues the prompts of a JSONL file, and goes on where an earlier run has ended.

Usage: batch_inference.py IN.jsonl OUT.jsonl [MODEL]   lines of {"id": ..., "prompt": ...}
"""

import json
import os
import sys

from quire import LLM, SamplingParams

CHUNK = 256  # prompts that run together; what an end in the middle loses


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def main(source, target, model=""):
    done = {line["id"] for line in read(target)} if os.path.exists(target) else set()
    left = [line for line in read(source) if line["id"] not in done]
    llm = LLM(model)
    params = SamplingParams(temperature=0, max_tokens=64)
    with open(target, "a", encoding="utf-8") as out:
        for begin in range(0, len(left), CHUNK):
            chunk = left[begin:begin + CHUNK]
            outputs = llm.generate([line["prompt"] for line in chunk], params)
            lines = [json.dumps({"id": line["id"], "text": output.outputs[0].text, "error": output.outputs[0].error})
                     for line, output in zip(chunk, outputs)]
            out.write("".join(line + "\n" for line in lines))
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
