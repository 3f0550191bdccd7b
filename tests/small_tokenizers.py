"""Real tokenizers that take milliseconds: byte-level BPE of a few hundred tokens, trained here."""

from __future__ import annotations

from pathlib import Path

from polish import SENTENCES
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def write_tokenizer(folder: Path, *, vocabulary_size: int) -> Path:
    """Train on the test sentences and write `folder/tokenizer.json`; returns the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
