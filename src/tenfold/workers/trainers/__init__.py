"""How a worker trains its replica together with the others: averaged gradients, averaged weights, or exchanges."""
