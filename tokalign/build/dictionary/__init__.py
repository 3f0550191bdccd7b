"""Turn counts into dictionaries: the back-off table, and DictSpec's as published."""
