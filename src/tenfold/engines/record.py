"""Running an engine with everything recorded, however it ends."""

import traceback
from dataclasses import replace
from typing import Any

from tenfold.engines.base import Engine, Outcome, Resumption
from tenfold.engines.task import Task
from tenfold.errors import StoreError, TenfoldError, WorkerLost
from tenfold.runs import Clock, Emit, Event, Lifecycle, Recorder, Store, checkpoint


def execute(
    engine: Engine, task: Task, store: Store, run: int, clock: Clock, listen: Emit, resumption: Resumption | None = None
) -> Outcome:
    """Train, record the events as they come and the result at the end, and save the weights."""
    path = store.path(run, store.find(run)["title"])
    task = replace(task, checkpoints=path / "checkpoint")
    recorder = Recorder(store, run)

    def emit(event: Event) -> None:
        recorder(event)
        listen(event)
        if isinstance(event, Lifecycle):
            recorder.flush()
            if event.what == "warning":
                recorder.report(event.detail)

    def end(status: str, error: str = "", result: dict[str, Any] | None = None) -> None:
        emit(Lifecycle(at=clock.now(), what=status, detail=error.partition("\n")[0]))
        recorder.close(result=result or {}, status=status, error=error)

    try:
        outcome = engine.run(task, clock, emit, resumption)
    except WorkerLost as error:
        end("interrupted", str(error))
        raise
    except TenfoldError as error:
        end("failed", str(error))
        raise
    except KeyboardInterrupt:
        end("interrupted")
        raise
    except BaseException:
        end("failed", traceback.format_exc())
        raise
    outcome.result["total_seconds"] = clock.now()
    try:
        checkpoint.save(outcome.weights, path / "model.pt")
        checkpoint.remove(path / "checkpoint")
    except StoreError as error:
        recorder.report(str(error))
    outcome.result["problem"] = recorder.problem
    end("finished", result=outcome.result)
    return outcome
