"""Train on a table in a CSV file: numbers, categories and missing values, without any preparation.

Expected output (the last digits depend on the processor):

    classification: 'late' has 2 classes (no, yes), predicted from 3 columns as 5 inputs (categories are one-hot)
    regression: 'price' is predicted as a number, from 3 columns as 5 inputs (categories are one-hot)
    2 workers: accuracy 1.0; 1 worker: rmse 0.0
"""

import csv
import random
from pathlib import Path

import tenfold

draw = random.Random(0)
with Path("orders.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["distance", "carrier", "weight", "late", "price"])
    for _ in range(900):
        distance, carrier, weight = draw.uniform(10, 2000), draw.choice(["air", "rail", "road"]), draw.uniform(0, 30)
        late = distance / 1000 + {"air": -1, "rail": 0, "road": 1}[carrier] > 1
        known = "" if draw.random() < 0.05 else f"{weight:.1f}"
        table.writerow([f"{distance:.0f}", carrier, known, "yes" if late else "no", f"{distance / 1000:.3f}"])

options = {"model": "mlp", "data": "orders.csv", "standardize": True, "epochs": 8, "optimizer": "adam", "lr": 0.01}
inputs = ["distance", "carrier", "weight"]
late = tenfold.train(**options, target_column="late", input_columns=inputs, workers=2)
price = tenfold.train(**options, target_column="price", input_columns=inputs, metrics="rmse")
for run in (late, price):
    print(next(event.text for event in run.events("lifecycle") if hasattr(event, "text")))
print(f"2 workers: accuracy {late.accuracy:.2f}; 1 worker: rmse {price.metrics['rmse']:.2f}")
