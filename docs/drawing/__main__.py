"""`python -m docs.drawing`: draws every picture of the pages anew, into `docs/pictures`."""

from pathlib import Path

from docs.drawing import pictures

for name, text in pictures.all_of_them():
    (Path(__file__).parents[1] / "pictures" / name).write_text(text, encoding="utf-8")
