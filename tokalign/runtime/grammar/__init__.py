"""Grammars: what an output has to match (`Grammar`, asked for by a user), and which ids may follow
a text (`Constraint`: a grammar for one tokenizer and one request)."""

from tokalign.runtime.grammar.constraint import Constraint as Constraint
from tokalign.runtime.grammar.constraint import State as State
from tokalign.runtime.grammar.constraint import constrain as constrain
from tokalign.runtime.grammar.grammar import Grammar as Grammar
from tokalign.runtime.grammar.grammar import json_lark as json_lark
