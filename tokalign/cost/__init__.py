"""What a round costs: measured curves and where they are kept, expected gain, break-even."""
