"""Draft length by expected gain: costs, estimates, and the controller."""
