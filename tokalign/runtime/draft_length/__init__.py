"""Choose in every round how many tokens to draft, from measured costs and learned acceptance.

`decision.py` holds the rules as one pure function. `controller.py` connects it with the decode
loop and the clock. `knowledge.py` lists what is learned, with one module for each part of it.
`opening_knowledge.py` says what is known before the first round.
"""
