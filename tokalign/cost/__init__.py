"""What a round costs: measured curves and where they are kept, and expected gain."""
