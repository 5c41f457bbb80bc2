"""The mathematics: the operator, its write rules, its state, and what joins segments of a sequence."""
