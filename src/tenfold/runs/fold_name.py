"""The name of a fold of a cross-validation, the same wherever it is shown."""


def fold_name(fold: int, repeat: int, node: int) -> str:
    """Return the name of a fold: "fold 3", "repeat 2, fold 3", "node 1, repeat 2, fold 3".

    The first repeat is not named, and neither is node 0, which stands for folds of all data.
    """
    of_node = f"node {node}, " if node else ""
    of_repeat = f"repeat {repeat}, " if repeat > 1 else ""
    return f"{of_node}{of_repeat}fold {fold}"
