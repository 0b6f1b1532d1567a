"""A Flower app that trains any scenario of asyncmanifold."""
