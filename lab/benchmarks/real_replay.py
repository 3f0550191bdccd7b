"""Tokens per pass where a real model answers, on a busy machine: its recorded answers play it.

    python -m lab.benchmarks.real_replay TARGET DRAFT --answers FILE.jsonl --results FILE.jsonl
        --curve CURVE [--temp 0.7] [--limit N] [--only REGEX] [--dictionary FILE] [--table]

The answers are the plain ones that `real_models.py` kept. Drafters, loop and draft length
controller are the real ones. The target's passes are replaced in one of two ways:

* A draft model's proposals do not depend on the target's logits, so the recorded ids decide. Only
  the draft model computes.
* Free sources also copy what the target found probable. So the target computes every row that is
  proposed, once (`remembered_target.py`): the rows of the answer 32 at a time, the others when they
  are first asked for. What is emitted is what these rows choose, and is compared with the answer.

Costs are those of --curve, on a clock that only passes move: so the lengths that `auto` and the
free sources choose do not depend on what else the machine does. A curve that has no time of a draft
pass takes it, as a share of a pass, from that of --measured. The speeds are projections, host time
left out. Fixed lengths are projected under other curves too; the others would be others there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from lab.benchmarks.paired_lines import PLAIN, counts, table, tokens_of
from lab.benchmarks.real_models import Condition, Runner, conditions, model_options, opened
from lab.benchmarks.real_prompts import KINDS, Asked, prompts
from lab.benchmarks.remembered_target import MOST_DEPTH, RememberingVerifier, Text
from lab.fingerprint import model_fingerprint
from lab.project import SimulatedClock, TimedVerifier
from lab.round_costs import RoundCosts, in_plain_passes
from tokalign.api.assemble import keep_loaded, load_models
from tokalign.cli.output import progress
from tokalign.evaluate.replay import ReplayVerifier
from tokalign.runtime.chat import Prompt
from tokalign.runtime.cost import read_curve
from tokalign.runtime.decoder import Decoder
from tokalign.runtime.draft.costs import MAX_DRAFT, LearnedCosts, PassTimes
from tokalign.runtime.draft.knowledge import Knowledge, ModelKnowledge
from tokalign.runtime.draft.neural import DRAFT, ModelDrafter
from tokalign.runtime.drafting import make_drafter
from tokalign.runtime.loop import Decoding, Limits
from tokalign.runtime.mlx.draft_session import DraftModelSession
from tokalign.runtime.mlx.sampling import Sampling
from tokalign.runtime.mlx.session import TargetModelSession
from tokalign.runtime.mlx.weights import vocabulary_size
from tokalign.runtime.request import Request
from tokalign.runtime.rounds import Context, Proposal, Round, Verifier
from tokalign.tables.token_tree import TokenTree
from tokalign.tokenizer.vocabulary import TargetId

_AT_ONCE, _KNOWN = 32, 4
_PROJECTED = "m2-pro", "m3-max", "m4-pro-8-bit", "m4-pro", "m5-max"


class TimedModel(ModelDrafter):
    """A draft model whose passes take the time that the costs say."""

    def __init__(self, model: ModelDrafter, costs: RoundCosts, clock: SimulatedClock) -> None:
        super().__init__(model.session, model.steps, model.alternatives)
        self._model, self._costs, self._on = model, costs, clock
        self.reads_ahead = model.reads_ahead

    def find(self, context: Context, steps: int) -> Proposal:
        return self._model.find(context, steps)

    def draft(self, context: Context, *, steps: int, limit: int) -> Proposal:
        reading = self._costs.reading * (self.unread(context.ids) - 1)
        self._model.meanwhile = self.meanwhile
        proposal = self._model.draft(context, steps=steps, limit=limit)
        self.reads_ahead, self.read_ahead = self._model.reads_ahead, self._model.read_ahead
        self._on.now += reading + self._costs.drafting(
            proposal.draft_passes, tree=is_tree(proposal.tree)
        )
        return proposal

    def unread(self, ids: Sequence[TargetId]) -> int:
        return self._model.unread(ids)

    def observe(self, one: Round) -> None:
        self._model.observe(one)


def is_tree(tree: TokenTree[TargetId]) -> bool:
    """Whether it is more than a chain."""
    return tree.chain_length < len(tree)


@dataclass
class Player:
    """Plays conditions on recorded answers. costs: of --curve, in plain passes."""

    runner: Runner
    costs: RoundCosts
    _decoders: dict[str, Decoder] = field(default_factory=dict)
    _texts: dict[Asked, Text] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._target = TargetModelSession(self.runner.target.model)
        self._draft = DraftModelSession(self.runner.draft.model)

    def play(self, asked: Asked, condition: Condition, answer: Sequence[int]) -> dict[str, Any]:
        """Decode an answer. Returns: the line that is kept of it."""
        name = condition.name
        decoder = self._decoders.get(name) or self._decoder(condition)
        self._decoders[name] = decoder
        prompt = decoder.prompt(asked.text)
        text = self._text(asked, prompt, answer)
        context, rounds = self._rounds(decoder, prompt, text, len(answer))
        self.runner.keep_store(name, decoder)
        return {
            "kind": asked.kind,
            "number": asked.number,
            "temp": self.runner.temp,
            "condition": name,
            "computes": "rows" if decoder.drafting.uses_logits else "drafts",
            "compared": len(answer),
            "differing": sum(a != b for a, b in zip(context.emitted, answer, strict=True)),
            "tokens": [len(one.emitted) for one in rounds[1:]],
            "rows": [one.rows for one in rounds[1:]],
            "draft_passes": [one.draft_passes for one in rounds[1:]],
            "trees": [int(is_tree(one.tree)) for one in rounds[1:]],
        }

    def _decoder(self, condition: Condition) -> Decoder:
        """A decoder that begins with the costs."""
        decoder = self.runner.decoder(condition)
        if decoder.drafting.knowledge is None:
            return decoder
        rows = PassTimes([time + self.costs.host for time in self.costs.rows], weight=_KNOWN)
        drafting = self.costs.drafting
        drafts = [drafting(n, tree=True) / rows(1) for n in range(1, 1 + MAX_DRAFT)]
        models = {DRAFT: ModelKnowledge(PassTimes(drafts, weight=_KNOWN))}
        own = Knowledge(costs=LearnedCosts(rows, host=self.costs.host), models=models)
        return replace(decoder, drafting=replace(decoder.drafting, knowledge=own))

    def _text(self, asked: Asked, prompt: Prompt, answer: Sequence[int]) -> Text:
        if asked not in self._texts:
            self._texts.clear()  # all conditions are played on one prompt before the next
            ids = [*prompt.target, *map(TargetId, answer)]
            padded = [*ids, *ids[-1:] * MOST_DEPTH]
            sampler = Sampling(temperature=self.runner.temp)
            self._texts[asked] = Text(padded, len(prompt.target), sampler)
        return self._texts[asked]

    def _read_answer(self, text: Text) -> None:
        """Have the target compute the rows of the answer, many at once."""
        reader = RememberingVerifier(self._target, text, None)
        for at in range(text.given, len(text.ids) - MOST_DEPTH, _AT_ONCE):
            chain = TokenTree.chain(text.ids[at : at + _AT_ONCE - 1], "")
            reader.verify(Context(text.ids[:at]), Proposal(tree=chain))

    def _rounds(
        self, decoder: Decoder, prompt: Prompt, text: Text, tokens: int
    ) -> tuple[Context, list[Round]]:
        drafting, clock, noise = decoder.drafting.with_stores(), SimulatedClock(), None
        verifier: Verifier = ReplayVerifier(text.ids)
        if drafting.uses_logits:
            assert isinstance(text.sampler, Sampling)
            noise = text.sampler.noise_ahead(vocabulary_size(decoder.target.model))
            self._read_answer(text)
            verifier = RememberingVerifier(self._target, text, drafting.row_store)
        session = self._draft if decoder.draft is not None else None
        neural = decoder.translated(drafting, Request(prompt, sampler=text.sampler), session)
        models: list[ModelDrafter] = [] if neural is None else [neural]
        if drafting.knowledge is not None:
            verifier = TimedVerifier(verifier, self.costs, clock)
            models = [TimedModel(model, self.costs, clock) for model in models]
        drafter = make_drafter(drafting, *models, noise=noise)
        context = Context(prompt.target)
        limits = Limits(max_tokens=tokens, stop_ids=decoder.target.stop_ids)
        events = Decoding(context, drafter, verifier, limits=limits, clock=clock)
        return context, [one for one in events if isinstance(one, Round)]


def costs_of(name: str, own: RoundCosts | None = None) -> RoundCosts:
    """The costs of a curve, those of the draft model from `own` where it has none."""
    curve = read_curve(name)
    costs = in_plain_passes(curve)
    if own is None or curve.draft_pass is not None:
        return costs
    return replace(costs, draft_pass=own.draft_pass, tree_pass=own.tree_pass)


def seconds_of(line: dict[str, Any], costs: RoundCosts) -> float:
    """What the rounds of a line take, in plain passes."""
    rounds = zip(line["rows"], line["draft_passes"], line["trees"], strict=True)
    found: float = sum(
        costs.round(rows - 1, passes, tree=bool(tree)) for rows, passes, tree in rounds
    )
    return found


def show(lines: Sequence[dict[str, Any]], own: RoundCosts, *, by_kind: bool) -> None:
    """Print a table for every temperature. by_kind: a row for each kind of prompts, too."""
    curves = {"--curve": own} | {name: costs_of(name, own) for name in _PROJECTED}
    head = ["condition", "prompts", "tokens per pass", "rows", "draft passes", *curves, "differing"]
    for temp in sorted({line["temp"] for line in lines}):
        rows = []
        for name in dict.fromkeys(line["condition"] for line in lines):
            of = [one for one in lines if (one["temp"], one["condition"]) == (temp, name)]
            kinds = [("", of)]
            if by_kind:
                kinds += [(kind, [x for x in of if x["kind"] == kind]) for kind in KINDS]
            for kind, some in kinds:
                if some:
                    rows.append(_cells(f"{name}, {kind}" if kind else name, some, curves))
        print(f"\nT = {temp}\n\n{table(head, rows)}")


def _cells(name: str, lines: Sequence[dict[str, Any]], curves: dict[str, RoundCosts]) -> list[str]:
    tokens = tokens_of(lines).sum()
    speeds = [
        f"{tokens / sum(seconds_of(line, costs) for line in lines):.2f}"
        if "K = " in name or not at
        else ""
        for at, costs in enumerate(curves.values())
    ]
    emitted = sum(line["compared"] for line in lines)
    differing = sum(line["differing"] for line in lines)
    computed = lines[0]["computes"] == "rows"
    return [
        name,
        *counts(lines),
        *speeds,
        f"{differing} of {emitted:,}" if computed else "replayed",
    ]


@click.command()
@model_options
@click.option("--answers", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--by-kind", is_flag=True, help="A row for each kind of prompts, too.")
@click.option("--curve", required=True, help="Draft lengths are chosen by it.")
@click.option("--measured", help="A curve of this machine, with the times of a draft pass.")
def main(
    target: Path,
    draft: Path,
    results: Path,
    temp: float,
    tokens: int,
    limit: int | None,
    only: str,
    kinds: Sequence[str],
    dictionaries: Sequence[Path],
    held_out: bool,
    shown: bool,
    by_kind: bool,
    answers: Path,
    curve: str,
    measured: str | None,
) -> None:
    """Play what is not in the file yet, and show the table."""
    costs = costs_of(curve, None if measured is None else costs_of(measured))
    models = [model_fingerprint(target), model_fingerprint(draft)]
    lines = opened(results, {"models": models, "tokens": tokens, "curve": Path(curve).name})
    if not shown:
        plain = {
            (one["kind"], one["number"]): one["ids"]
            for one in opened(answers, {"models": models, "tokens": tokens})
            if (one["condition"], one["temp"]) == (PLAIN, temp)
        }
        done = {(x["kind"], x["number"], x["condition"]) for x in lines if x["temp"] == temp}
        chosen = [one for one in conditions(dictionaries) if re.search(only, one.name)]
        left = [
            (asked, condition)
            for asked in prompts(held_out=held_out)[:limit]
            if asked.kind in kinds and asked[:2] in plain
            for condition in chosen
            if (asked.kind, asked.number, condition.name) not in done
        ]
        ours, theirs = load_models([str(target), str(draft)], dtype="float32")
        keep_loaded()
        player = Player(Runner(ours, theirs, temp, tokens, results), costs)
        with progress(len(left), "playing") as advance, results.open("a") as file:
            for asked, condition in left:
                lines.append(player.play(asked, condition, plain[asked[:2]]))
                print(json.dumps(lines[-1]), file=file, flush=True)
                advance(1)
    show([line for line in lines if line["kind"] in kinds], costs, by_kind=by_kind)


if __name__ == "__main__":
    main()
