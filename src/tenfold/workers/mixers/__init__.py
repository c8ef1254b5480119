"""What a worker's replica exchanges with the others: rounds, or asynchronous exchanges."""
