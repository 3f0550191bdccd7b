"""The text of a conversation: from messages to a prompt, and from an answer's text to blocks.

    history.py       messages of any API as a chat template reads them (other_histories.py)
    rendering.py     messages in a chat template, merged where it needs that
    prompts.py       prompts of chats, and of texts to fill in
    tools.py         which tools may be called, and in what format (call_grammars.py)
    tool_calls.py    the calls of every format, read while they come (incoming.py, values.py), in
                     JSON or Python (json_calls.py, python_calls.py) or between tags
    blocks.py        an answer's text as blocks of text, thought and calls, which grow

It imports nothing of HTTP and computes nothing with mlx. Read next: `blocks.py`.
"""
