"""`python -m docs.drawing`: draw every picture into `docs/pictures`, and print how many arrows the rooms have."""

from pathlib import Path

from docs.drawing import pictures, rooms

for name, text in pictures.all_of_them():
    (Path(__file__).parents[1] / "pictures" / name).write_text(text, encoding="utf-8")
print(f"project: {rooms.project()}")
print(f"router: {rooms.router()}")
