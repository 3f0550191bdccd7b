"""Grammars: what an output has to match, and which ids may follow a text.

`Grammar` is what a user asks for (`grammar.py`). A `Constraint` is that for one tokenizer and one
request (`constraint.py`); `constrain` makes one, in any thread.
"""

from tokalign.runtime.grammar.constraint import Constraint as Constraint
from tokalign.runtime.grammar.constraint import State as State
from tokalign.runtime.grammar.constraint import constrain as constrain
from tokalign.runtime.grammar.grammar import Grammar as Grammar
from tokalign.runtime.grammar.grammar import json_lark as json_lark
