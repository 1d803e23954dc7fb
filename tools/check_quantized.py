#!/usr/bin/env python3
"""Checks by transformers, compressed-tensors and bitsandbytes what `quire quantize` writes.

    tools/check_quantized.py build/release/bin/quire [MODEL]

MODEL (default: models/toy) is written in each format and loaded in float32. The weights that the libraries have must be
those of docs/quantisation.md to the last bit, and a pass through the model must give logits. Exit code 1 where one
differs; where a library is missing that is said, and nothing is checked.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # bars

LIBRARIES = ["torch", "transformers", "accelerate", "compressed-tensors", "bitsandbytes"]
try:
    import bitsandbytes
    import compressed_tensors  # noqa: F401: transformers wants it
    import accelerate  # noqa: F401
    import torch
    import transformers
except ImportError as e:
    print(f"check_quantized.py: SKIPPED: {e}; pip install {' '.join(LIBRARIES)}")
    sys.exit(0)

# A group's columns (0: the row), and the number that its largest magnitude becomes.
FORMATS = {"fp8": (0, 448.0), "int8": (0, 127.0), "int4": (128, 7.5), "nf4": (64, 1.0)}


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def expected(weight, name):
    """What docs/quantisation.md makes of a matrix, in float32."""
    columns, largest = FORMATS[name]
    groups = weight.reshape(-1, columns or weight.shape[1])
    scale = groups.abs().amax(dim=1, keepdim=True) / largest
    if name == "int4":
        scale = scale.to(torch.bfloat16).to(torch.float16).to(torch.float32)
    values = groups / scale
    if name == "fp8":
        codes = values.to(torch.float8_e4m3fn).to(torch.float32)
    elif name == "nf4":
        table = bitsandbytes.functional.get_4bit_type("nf4", device="cpu")
        codes = table[(values[..., None] - table).abs().argmin(dim=-1)]
    else:
        codes = values.round().clamp(-8 if name == "int4" else -127, 7 if name == "int4" else 127)
    return (codes * scale).reshape(weight.shape)


def weight_of(module):
    state = getattr(module.weight, "quant_state", None)
    if state is None:
        return module.weight.data
    state.dtype = torch.float32  # not rounded to that of the model
    return bitsandbytes.functional.dequantize_4bit(module.weight.data, state)


def main():
    transformers.logging.set_verbosity_error()
    quire = sys.argv[1]
    model = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent.parent / "models" / "toy")
    source = load(model)
    linears = {name: module for name, module in source.named_modules() if isinstance(module, torch.nn.Linear)}
    ids = torch.arange(5, 37)[None]
    failed = False
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        logits = source(ids).logits
        for name in FORMATS:
            out = Path(folder) / name
            subprocess.run([quire, "quantize", model, out, "--format", name], check=True, stdout=subprocess.DEVNULL)
            loaded = load(out)
            got = loaded(ids).logits
            # With its first pass compressed-tensors decompresses; bitsandbytes packs anew.
            modules = dict((load(out) if name == "nf4" else loaded).named_modules())
            same = [torch.equal(weight_of(modules[key]), expected(linear.weight.data, name))
                    for key, linear in linears.items() if key != "lm_head"]
            error = ((got - logits).norm() / logits.norm()).item()
            right = all(same) and torch.equal(modules["lm_head"].weight, source.lm_head.weight) and error < 0.5
            failed |= not right
            print(f"{'ok    ' if right else 'FAILED'} {name}: {sum(same)} of {len(same)} matrices as they should be; "
                  f"logits differ by {error:.3f} of their norm from the plain model's")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
