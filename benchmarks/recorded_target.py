"""A Llama in numpy that plays the target on texts recorded before, for measuring trees on a CPU.

mlx's matrix products for Linux CPUs take 14 times as long as numpy's for the rows of a tree. The
text that the target emits is fixed before (with `match`, drafting never changes it), so one pass
over each text gives keys and values of all its positions. A tree then needs only its own rows.
What was likely after a row is remembered, because runs with other numbers of rows or other sources
meet most of the same rows again. `RecordedTarget` is a target session for `TargetVerifier`: loop,
verifier, store and drafters are those of tokalign.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tokalign.runtime.draft.logit_store import KEPT
from tokalign.tables.token_tree import TokenTree

_PASS_ROWS = 64


class Llama:
    """The forward pass of a small Llama, in float32."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        weights = {
            k: v.astype(np.float32) for k, v in load_file(folder / "model.safetensors").items()
        }
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps, self.theta = config["rms_norm_eps"], config.get("rope_theta", 10000.0)
        self.embedding = weights["model.embed_tokens.weight"]
        head = weights.get("lm_head.weight", self.embedding)
        self.head = np.ascontiguousarray(head.T)
        self.norm = weights["model.norm.weight"]
        self.layers = []
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}."
            w = {k.removeprefix(at): v for k, v in weights.items() if k.startswith(at)}
            self.layers.append(
                {k: np.ascontiguousarray(v.T) if v.ndim == 2 else v for k, v in w.items()}
            )

    def _rms(self, x: Any, weight: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def _rope(self, x: Any, positions: Any) -> Any:
        half = self.size // 2
        inv = self.theta ** (-np.arange(half, dtype=np.float32) / half)
        angle = positions[:, None].astype(np.float32) * inv
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def hidden(self, ids: Any, positions: Any, past: Any, mask: Any) -> tuple[Any, Any]:
        """Hidden states f[n, d] and the keys and values of every layer.

        past: per layer (keys, values) f[m, heads, size]. mask: bool[n, m + n].
        """
        x, kept = self.embedding[ids], []
        n = len(ids)
        bias = np.where(mask, 0.0, -1e9).astype(np.float32)
        for i, w in enumerate(self.layers):
            h = self._rms(x, w["input_layernorm.weight"])
            q = self._rope((h @ w["self_attn.q_proj.weight"]).reshape(n, self.heads, -1), positions)
            k = self._rope((h @ w["self_attn.k_proj.weight"]).reshape(n, self.kv, -1), positions)
            v = (h @ w["self_attn.v_proj.weight"]).reshape(n, self.kv, -1)
            kept.append((k, v))
            if past is not None:
                k, v = np.concatenate([past[i][0], k]), np.concatenate([past[i][1], v])
            if self.kv != self.heads:
                k, v = (np.repeat(z, self.heads // self.kv, axis=1) for z in (k, v))
            scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) / np.sqrt(self.size) + bias
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            mixed = (scores @ v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(n, -1)
            x = x + mixed @ w["self_attn.o_proj.weight"]
            h = self._rms(x, w["post_attention_layernorm.weight"])
            gate = h @ w["mlp.gate_proj.weight"]
            x = (
                x
                + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj.weight"]))
                @ w["mlp.down_proj.weight"]
            )
        return self._rms(x, self.norm), kept

    def logits(self, hidden: Any) -> Any:
        """Logits f[n, vocabulary]."""
        return hidden @ self.head

    def sample(
        self, prompts: Sequence[Sequence[int]], tokens: int, temperature: float, seed: int
    ) -> list[list[int]]:
        """Each prompt and `tokens` ids drawn after it; all prompts in one batch."""
        random = np.random.default_rng(seed)
        texts = [list(prompt) for prompt in prompts]
        owner = np.concatenate([np.full(len(p), i) for i, p in enumerate(texts)])
        at = np.concatenate([np.arange(len(p)) for p in texts])
        mask = (owner[None] == owner[:, None]) & (at[None] <= at[:, None])
        hidden, past = self.hidden(np.concatenate([np.array(p) for p in texts]), at, None, mask)
        last = hidden[np.cumsum([len(p) for p in texts]) - 1]
        each = np.arange(len(texts))
        for _ in range(tokens):
            scores = self.logits(last) / temperature
            drawn = np.argmax(scores + random.gumbel(size=scores.shape), axis=-1)
            owner = np.concatenate([owner, each])
            mask = owner[None] == each[:, None]
            positions = np.array([len(text) for text in texts])
            last, kept = self.hidden(drawn, positions, past, mask)
            past = [
                tuple(np.concatenate(pair) for pair in zip(a, b, strict=True))
                for a, b in zip(past, kept, strict=True)
            ]
            for text, token in zip(texts, drawn.tolist(), strict=True):
                text.append(token)
        return texts


def likeliest(logits: Any) -> tuple[Any, Any]:
    """The likeliest ids and their log-probabilities."""
    best = np.argpartition(-logits, KEPT - 1, axis=-1)[:, :KEPT]
    most = logits.max(-1, keepdims=True)
    total = most + np.log(np.exp(logits - most).sum(-1, keepdims=True))
    return best, np.take_along_axis(logits, best, axis=-1) - total


class RecordedTarget:
    """A target session that goes on as a recorded text does, whatever is proposed."""

    can_branch = True

    def __init__(self, model: Llama, text: Sequence[int], known: dict[Any, Any]) -> None:
        self._model, self._text, self._known = model, list(text), known
        ids = np.array(self._text)
        at = np.arange(len(ids))
        hidden, self._past = model.hidden(ids, at, None, at[None] <= at[:, None])
        self.passes = self.rows = 0
        self.seconds = 0.0
        self.context_length = self.rewindable = 1 << 30
        if () not in known:
            found = [likeliest(model.logits(hidden[i : i + 64])) for i in range(0, len(ids), 64)]
            known[()] = tuple(np.concatenate(part) for part in zip(*found, strict=True))

    def logits(self, ids: Sequence[Any], last: int = 1) -> Any:
        """See `interfaces.Session`."""
        chain = TokenTree.chain(ids[len(ids) - last + 1 :], "")
        return self.tree(ids[: len(ids) - last + 1], chain)

    def tree(self, ids: Sequence[Any], tree: TokenTree) -> Any:
        """See `interfaces.TargetSession`."""
        self.passes += 1
        self.rows += 1 + len(tree)
        return len(ids), tree

    def likeliest(self, logprobs: Any, count: int, *, normalized: bool = True) -> tuple[Any, Any]:
        """See `interfaces.TargetSession`."""
        end, tree = logprobs
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.ids, tree.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else (end,)), token))
        missing = [i for i, path in enumerate(paths) if path not in self._known]
        if missing:
            self._compute(end, tree, paths, missing)
        ids = np.empty((1 + len(tree), KEPT), dtype=np.int64)
        values = np.empty((1 + len(tree), KEPT), dtype=np.float32)
        ids[0], values[0] = (part[end - 1] for part in self._known[()])
        for row, path in enumerate(paths, start=1):
            ids[row], values[row] = self._known[path]
        return ids, values

    def _compute(self, end: int, tree: TokenTree, paths: Any, missing: Sequence[int]) -> None:
        needed = sorted({i for index in missing for i in tree.path_to(index)})
        place = {index: row for row, index in enumerate(needed)}
        mask = np.zeros((len(needed), end + len(needed)), dtype=bool)
        mask[:, :end] = True
        for row, index in enumerate(needed):
            mask[row, [end + place[i] for i in tree.path_to(index)]] = True
        positions = np.array([end + len(paths[i]) - 2 for i in needed])
        past = [(k[:end], v[:end]) for k, v in self._past]
        ids = np.array([tree.ids[i] for i in needed])
        hidden, _ = self._model.hidden(ids, positions, past, mask)
        best, values = likeliest(self._model.logits(hidden[[place[i] for i in missing]]))
        for row, index in enumerate(missing):
            self._known[paths[index]] = best[row].astype(np.int32), values[row].astype(np.float32)

    def feed(self, token: Any) -> Any:
        """See `interfaces.Session`. Nothing runs ahead here."""
        raise NotImplementedError

    def start(self, *arrays: Any) -> None:
        """See `interfaces.Session`."""

    def read(self, array: Any) -> list[Any]:
        """See `interfaces.Session`."""
        return list(array)


class Recorded:
    """A sampler that chooses what a recorded text goes on with."""

    needs_history, needs_position, draft_sampler = False, True, None

    def __init__(self, text: Sequence[int]) -> None:
        self._text = [*text, *[0] * 64]

    def choose(
        self,
        logits: Any,
        *,
        position: int,
        ids: Any = (),
        drawn: Any = None,
        depths: Any = None,
    ) -> tuple[Any, Any]:
        """See `interfaces.Sampler`."""
        rows = range(1 + len(logits[1])) if depths is None else depths
        return [self._text[position + depth] for depth in rows], logits
