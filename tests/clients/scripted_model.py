"""Checkpoints that say what a test wants to hear.

A scripted model is a real Qwen3 checkpoint whose every layer adds nothing: the logits are lm_head times the embedding
of the last token. Embeddings are unit vectors and lm_head is a permutation, so each token has one successor. A script
is cut into pieces that occur once in all scripts, and each piece is a token; the prompt's last token, which the chat
template writes, chooses the script. What is written over the wire is thus known to the byte, with the tokens ending
anywhere: inside a tag, a JSON string or a character.
"""

import array
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "models" / "toy"
PIECE_BYTES = 2  # at least, so that pieces end inside tags and characters
END = "<|im_end|>"
MAX_LENGTH = 2048

TEMPLATE = """\
{%- if tools %}{{- '<tools>' + (tools | tojson) + '</tools>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {#- A thought would stand between <think> and </think>. #}
    {%- if messages[-1].role == 'tool' %}{{- '<|tool_result|>' }}
SELECTION
    {%- endif %}
{%- endif %}
"""


def byte_to_character():
    """The byte-level alphabet of GPT-2: a printable character for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def cut(text, used):
    """Pieces of the text that are not in `used`, which gets them."""
    data, pieces, begin = text.encode(), [], 0
    while begin < len(data):
        end = begin + PIECE_BYTES
        while end < len(data) and data[begin:end] in used:
            end += 1
        piece = data[begin:end]
        while piece in used:  # another text ends like this one
            used.remove(pieces[-1])
            piece = pieces.pop() + piece
        pieces.append(piece)
        used.add(piece)
        begin = end
    return pieces


def ones_at(places, rows, columns):
    """A matrix that is 1 at `places`, else 0."""
    values = array.array("f", bytes(4 * rows * columns))
    for row, column in places:
        values[row * columns + column] = 1
    return values.tobytes()


def write_safetensors(path, tensors):
    """tensors: name -> (shape, bytes of float32)."""
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


def weights(successors, vocab_size, width):
    heads, inner = 16, 16

    def zeros(rows, columns):
        return [rows, columns], bytes(4 * rows * columns)

    def norm(size):
        return [size], array.array("f", [1] * size).tobytes()

    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": (
            [vocab_size, width],
            ones_at([(i, i) for i in range(vocab_size)], vocab_size, width),
        ),
        layer + "input_layernorm.weight": norm(width),
        layer + "self_attn.q_proj.weight": zeros(heads, width),
        layer + "self_attn.k_proj.weight": zeros(heads, width),
        layer + "self_attn.v_proj.weight": zeros(heads, width),
        layer + "self_attn.o_proj.weight": zeros(width, heads),
        layer + "self_attn.q_norm.weight": norm(16),
        layer + "self_attn.k_norm.weight": norm(16),
        layer + "post_attention_layernorm.weight": norm(width),
        layer + "mlp.gate_proj.weight": zeros(inner, width),
        layer + "mlp.up_proj.weight": zeros(inner, width),
        layer + "mlp.down_proj.weight": zeros(width, inner),
        "model.norm.weight": norm(width),
        "lm_head.weight": (
            [vocab_size, width],
            ones_at([(after, before) for before, after in successors.items()], vocab_size, width),
        ),
    }


def write_scripted_model(folder, scripts):
    """scripts: name -> what the model says when the last message has the name in it (`tool_result`: after a message of
    the role tool). A script that ends in "..." starts again instead of ending."""
    characters = byte_to_character()
    vocab = {characters[byte]: byte for byte in range(256)}
    special = [END, "<|im_start|>", *(f"<|{name}|>" for name in scripts)]
    special_ids = {content: len(vocab) + i for i, content in enumerate(special)}
    successors, used = {}, {bytes([byte]) for byte in range(256)}
    for name, text in scripts.items():
        ids = []
        for piece in cut(text.removesuffix("..."), used):
            ids.append(len(vocab) + len(special))
            vocab["".join(characters[byte] for byte in piece)] = ids[-1]
        successors[special_ids[f"<|{name}|>"]] = ids[0]
        successors.update(zip(ids, ids[1:]))
        successors[ids[-1]] = ids[0] if text.endswith("...") else special_ids[END]

    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    tokenizer["model"] |= {"vocab": vocab, "merges": []}
    tokenizer["added_tokens"] = [
        dict(tokenizer["added_tokens"][0], id=id, content=content) for content, id in special_ids.items()
    ]
    selection = "\n".join(
        f"    {{%- elif '{name}' in messages[-1].content %}}{{{{- '<|{name}|>' }}}}" for name in scripts
    )
    vocab_size = len(vocab) + len(special)
    width = -(-vocab_size // 64) * 64
    config = json.loads((BUNDLED / "config.json").read_text())
    config |= {
        "hidden_size": width, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": vocab_size, "tie_word_embeddings": False,
        "max_position_embeddings": MAX_LENGTH, "eos_token_id": special_ids[END], "torch_dtype": "float32",
        "pad_token_id": None,
    }  # fmt: skip

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("SELECTION", selection))
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights(successors, vocab_size, width))
    return folder
