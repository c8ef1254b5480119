"""Follow a run with your own callbacks, and stop it when it is accurate enough.

Expected output (the last digits depend on the processor):

    epoch 1: test accuracy 81.2%
    epoch 2: test accuracy 88.9%
    stopped by accuracy above 85% after 2 of 20 epochs
"""

import tenfold


class Print(tenfold.Callback):
    """Prints the accuracy after each epoch."""

    def on_epoch_end(self, event):
        print(f"epoch {event.epoch + 1}: test accuracy {event.metrics['test_accuracy']:.1%}")


class GoodEnough:
    """Stops the training at an accuracy; any object with such a method is a callback."""

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def on_evaluation(self, event):
        if event.name == "accuracy" and event.value > self.accuracy:
            raise tenfold.StopTraining(f"accuracy above {self.accuracy:.0%}")


run = tenfold.train(model="mlp", data="digits", workers=2, threads=1, epochs=20, callbacks=[Print(), GoodEnough(0.85)])
print(f"stopped by {run.result['stopped_by']} after {run.result['epochs']} of 20 epochs")
