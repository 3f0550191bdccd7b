"""From a draft model's ids to the target's."""
