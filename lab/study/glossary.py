"""What the words and the conditions on a study's page mean, for a reader who has only the page."""

from __future__ import annotations

from collections.abc import Iterable

from lab.study.conditions import CONTROL, PLAIN, Condition

WORDS = {
    "target, draft model": "the large model whose text is wanted, and a small one that guesses it; "
    "the target checks every guess, so the text is its own",
    "round": "one pass of the target: it checks what was proposed and adds a token of its own",
    "row": "one position that the target computes in a pass: one, and one more per proposed token",
    "chain, tree": "one guess after another, or several alternatives that are checked together",
    "k": "passes of the draft model, or tokens of another source, in a round; auto: chosen anew in "
    "every round by what it is expected to bring, often none",
    "acceptance": "the share of proposed tokens that the target would have chosen itself",
}
"""Terms that tables and charts use."""

_CONDITIONS = {
    PLAIN: "the target alone, a token per pass",
    CONTROL: "the same once more: how far the two differ is the noise of this machine",
    "none": "a draft model with the target's tokenizer, which needs no translation",
    "raw": "ids of the draft model's vocabulary taken for the target's: what happens without any "
    "translation between two tokenizers",
    "naive": "a draft model whose tokens are decoded and encoded again one by one, as published",
    "context": "a draft model whose tokens are translated together with the last P ones, as "
    "published",
    "intersection": "a draft model that may only propose tokens which both vocabularies have",
    "exact": "a draft model with tokalign's own translation, which loses nothing between two "
    "tokenizers",
    "drafter": "a small recurrent network trained on this target, which drafts by beam search",
    "dictionary": "a table of likely continuations in the text's language, without any model",
    "copy": "continuations of the same words earlier in the text",
    "prompt-lookup": "the same as published: the latest match of the last few tokens",
    "recycling": "Token Recycling, as published: the target's top-k logits at earlier positions",
    "sam": "SAM-Decoding, as published: the longest match in the text so far",
    "unispec": "UniSpec, as published: several such sources in one tree",
    "hybrid": "all sources at hand in one tree, which grows only while it is expected to pay",
}

_OTHER = "a condition that this version of tokalign does not know"


def meanings(conditions: Iterable[Condition]) -> dict[str, str]:
    """The meaning of every kind of condition that occurs, in their order, and of additions.

    Results may come from a later version, which has other conditions.
    """
    found: dict[str, str] = {}
    given = list(conditions)
    for condition in given:
        kind = condition.name.partition(":")[0]
        found[f"{kind}:P" if ":" in condition.name else kind] = _CONDITIONS.get(kind, _OTHER)
    if any(condition.chain for condition in given):
        found["…, a chain"] = "no alternatives are proposed, although they could be"
    if any(condition.draft for condition in given):
        found["… · NAME"] = "with the draft model or the recurrent drafter of this name"
    return found
