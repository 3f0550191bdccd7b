"""Choose in every round how many tokens to draft, by measured cost and learned acceptance."""
