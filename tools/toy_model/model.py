"""The Qwen3 architecture in plain PyTorch, with the tensor names that checkpoints of it have."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 4093,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "max_window_layers": 6,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "pad_token_id": 4091,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 4096,
}
# <|im_end|> ends an answer, <|endoftext|> a plain text.
GENERATION_CONFIG = {
    "do_sample": True,
    "eos_token_id": [4093, 4091],
    "pad_token_id": 4091,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.9,
}


def resize(hidden: int, layers: int) -> None:
    """Makes CONFIG that of a model of another size and the same shape; hidden: a multiple of 128."""
    CONFIG.update(hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, max_window_layers=layers)
    CONFIG.update(num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128)


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])
        return self.weight * wide.to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        hidden, self.size = CONFIG["hidden_size"], CONFIG["head_dim"]
        heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.q_proj = linear(hidden, heads * self.size)
        self.k_proj = linear(hidden, kv_heads * self.size)
        self.v_proj = linear(hidden, kv_heads * self.size)
        self.o_proj = linear(heads * self.size, hidden)
        self.q_norm = Norm(self.size)
        self.k_norm = Norm(self.size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def heads(t: Tensor) -> Tensor:  # [batch, heads, tokens, head_dim]
            return t.unflatten(-1, (-1, self.size)).transpose(1, 2)

        def rotate(t: Tensor) -> Tensor:
            first, second = t.chunk(2, -1)
            return (t * cos + torch.cat((-second, first), -1) * sin).to(t.dtype)

        q = rotate(self.q_norm(heads(self.q_proj(x))))
        k = rotate(self.k_norm(heads(self.k_proj(x))))
        v = heads(self.v_proj(x))
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = linear(CONFIG["hidden_size"], CONFIG["intermediate_size"])
        self.up_proj = linear(CONFIG["hidden_size"], CONFIG["intermediate_size"])
        self.down_proj = linear(CONFIG["intermediate_size"], CONFIG["hidden_size"])

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.mlp = Mlp()
        self.input_layernorm = Norm(CONFIG["hidden_size"])
        self.post_attention_layernorm = Norm(CONFIG["hidden_size"])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm(CONFIG["hidden_size"])
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = (2 * CONFIG["num_hidden_layers"]) ** -0.5 if "o_proj" in name or "down_proj" in name else 1.0
                nn.init.normal_(weight, std=CONFIG["initializer_range"] * scale)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [batch, tokens] -> final hidden states [batch, tokens, hidden]"""
        half = torch.arange(0, CONFIG["head_dim"], 2, device=ids.device)
        frequencies = CONFIG["rope_theta"] ** (-half.float() / CONFIG["head_dim"])
        angles = torch.arange(ids.shape[1], device=ids.device).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), -1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)

    def save(self, folder: Path) -> None:
        tensors = {
            f"model.{name}": t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in self.state_dict().items()
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for name, content in (("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG)):
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> "Toy":
        model = cls()
        tensors = load_file(folder / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})
        return model.to(device).eval()


@torch.inference_mode()
def generate(
    model: Toy, prompts: list[list[int]], max_tokens: int, sample: bool = False, seed: int = 0
) -> list[list[int]]:
    """Continues all prompts together, without a cache; shorter ones are padded on the right, which causal attention
    never sees."""
    device = model.embed_tokens.weight.device
    random = torch.Generator(device).manual_seed(seed)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    rows = torch.arange(len(prompts), device=device)
    ids = torch.full((len(prompts), int(lengths.max()) + max_tokens), CONFIG["pad_token_id"], device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    starts, ends = lengths.clone(), torch.tensor(GENERATION_CONFIG["eos_token_id"], device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for _ in range(max_tokens):
        hidden = model(ids[:, : int(lengths.max())])[rows, lengths - 1]
        logits = model.logits(hidden)
        best = logits.argmax(-1)
        if sample:
            values, order = (logits / GENERATION_CONFIG["temperature"]).topk(GENERATION_CONFIG["top_k"])
            shares = values.softmax(-1)
            shares[shares.cumsum(-1) - shares >= GENERATION_CONFIG["top_p"]] = 0
            best = order.gather(-1, torch.multinomial(shares, 1, generator=random))[:, 0]
        done |= torch.isin(best, ends)
        if done.all():
            break
        ids[rows[~done], lengths[~done]] = best[~done]
        lengths[~done] += 1
    return [ids[row, starts[row] : lengths[row]].tolist() for row in range(len(prompts))]
