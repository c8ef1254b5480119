"""Compare three averaging strategies with four workers to one worker.

Prints a table in Markdown and writes compare.html with plots. Expected output, without the numbers, which depend on
the machine (with fewer than four cores the workers take turns, and there is no speedup):

    | workers × threads | strategy | training time, ms | speedup | ...
    |---|---|---|---|...
    | 1 × 1 | – | ...
    | 4 × 1 | allreduce | ...
    | 4 × 1 | butterfly | ...
    | 4 × 1 | none | ...
    least sent: butterfly, ...
"""

import tenfold
from tenfold.reports.pages.run_pages import write_report

experiment = tenfold.Experiment(model="mlp", data="digits", epochs=5, batch_size=16, threads=1, oversubscribe=True)
comparison = tenfold.compare(experiment, workers=[1, 4], strategy=["allreduce", "butterfly", "none"])
print(comparison.to_markdown(), end="")

mixing = [row for row in comparison.rows if row.bytes_per_worker]
least = min(mixing, key=lambda row: row.bytes_per_worker)
print(f"least sent: {least.settings['strategy']}, {least.bytes_per_worker / 1e6:.1f} MB by each worker")
write_report(comparison.runs, "compare.html")
