"""The marks of a model's answers: around thoughts, calls and the messages that an answer is in."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokalign.conversation.call_grammars import after_thought, calls_grammar
from tokalign.conversation.json_calls import Tools
from tokalign.conversation.tools import ANY_TOOL, ToolFormat
from tokalign.runtime.grammar import Grammar
from tokalign.tokenizer.vocabulary import TargetId, Vocabulary

MESSAGE_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>")
_THOUGHTS = (
    *(("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")),
    *(("<|START_THINKING|>", "<|END_THINKING|>"), ("<|inner_prefix|>", "<|inner_suffix|>")),
)
"""Marks around thoughts that mlx-lm does not look for."""

_HEADER_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", *MESSAGE_ENDS)


def has_headers(tokens: Container[str]) -> bool:
    """Whether a model with these tokens answers in messages with headers, as gpt-oss and Muse."""
    return "<|start|>" in tokens and "<|message|>" in tokens


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The marks that are looked for in an answer's text; in a raw completion there are none.

    thought: the marks around thoughts. calls: the format of calls, if any may be made. dropped:
    marks without a meaning. has_channels: whether the answer is in messages with headers.
    """

    thought: tuple[str, str] | None = None
    calls: ToolFormat | None = None
    dropped: tuple[str, ...] = ()
    has_channels: bool = False

    @classmethod
    def of(cls, tokenizer: Any) -> AnswerForm:
        """The form of a model's chats. tokenizer: mlx-lm's."""
        thoughts = [(tokenizer.think_start, tokenizer.think_end)] * tokenizer.has_thinking
        tokens = set(tokenizer.get_added_vocab())
        thoughts += [marks for marks in _THOUGHTS if tokens.issuperset(marks)]
        return cls(
            thought=thoughts[0] if thoughts else None,
            calls=ToolFormat.of(tokenizer),
            dropped=tuple(tokenizer.structural_markers),
            has_channels=has_headers(tokens),
        )

    def without_calls(self) -> AnswerForm:
        """The form of an answer to a request without tools."""
        return replace(self, calls=None)

    def silent_ids(
        self, vocabulary: Vocabulary[TargetId], stop_texts: Sequence[str] = ()
    ) -> frozenset[TargetId]:
        """Special tokens whose spelling is no part of an answer: all but the marks of the form, and
        those that a text which ends the answer spells."""
        marks = [*(self.thought or ()), *self.dropped, "\0".join(stop_texts)]
        if self.has_channels:
            marks += _HEADER_MARKS
        if self.calls is not None:
            if not self.calls.is_known:
                return frozenset()  # the format may have marks of its own inside
            marks += self.calls.marks
        return frozenset(
            token
            for text, token in vocabulary.special_ids.items()
            if not any(text in mark for mark in marks)
        )

    def grammar(
        self,
        wanted: Grammar | None,
        vocabulary: Vocabulary[TargetId],
        *,
        tools: Tools,
        choice: str | None,
        several: bool,
    ) -> Grammar | None:
        """The grammar of an answer: a text that matches `wanted`, or calls. choice: the tool that
        has to be called, as of `calls_grammar`; None if none has to be. Raises: UsageError."""
        text = None if wanted is None else self._placed(wanted, vocabulary)
        if choice is not None:
            return calls_grammar(self.calls, vocabulary, tools, choice, several=several)
        if text is None or not tools or self.calls is None:
            return text
        return text | calls_grammar(self.calls, vocabulary, tools, ANY_TOOL, several=several)

    def _placed(self, grammar: Grammar, vocabulary: Vocabulary[TargetId]) -> Grammar:
        """A grammar of the text as one of the whole answer, in which the channel `final` begins it.
        One that names channels itself is one of the whole answer already."""
        mark = "<|channel|>"
        ids = vocabulary.special_ids
        if not self.has_channels or mark not in ids or mark in grammar.definition:
            return grammar
        return grammar.after(after_thought("final<|message|>", vocabulary))


TEXT_ONLY = AnswerForm()
