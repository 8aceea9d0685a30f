"""privml: models on data nobody may see, models that forget, and what each record is worth."""

__version__ = "0.2.0"
