"""What a pass costs: measured curves, and where they are kept."""
