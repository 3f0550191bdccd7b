"""What a round costs: curves, where they are kept, and the cost models of the literature."""
